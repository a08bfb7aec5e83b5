"""What a user sees of a whole run: lines on the way, a file of observations, sinks that hold every step
once.
"""

import json
import os
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from harnessgym.metrics.feed import read_statuses
from tests.harnessgym.metrics.test_sinks import scalars
from tests.test_bad_input_runs import Run

HERE = "tests.test_watched_run"
STEPS = 6
SINKS = ["tensorboard", f"{HERE}:Broken"]


class Broken:
    """A sink that never works."""

    needs = "json"

    def __init__(self, place):
        raise ConnectionError("nobody there")


@pytest.mark.skipif(
    find_spec("tensorboard") is None and "metrics" not in os.environ.get("HARNESSGYM_REQUIRE", ""),
    reason="tensorboard is not installed: pip install 'harnessgym-rl[metrics]'",
)
def test_a_run_that_is_killed_and_taken_up_again_has_every_step_once_in_its_sinks(tmp_path):
    run = Run(tmp_path, "waits", trainer={"steps": STEPS}, metrics={"sinks": SINKS}).start()
    sinks = run.paths().sinks_path
    run.wait(
        lambda: read_statuses(sinks).get("tensorboard", SimpleNamespace(step=0)).step >= 1, timeout_s=150
    )
    run.process.kill()
    run.process.wait()
    said = run.end(timeout_s=200)
    assert (
        said.count("The metrics sink 'tests.test_watched_run:Broken' failed: ConnectionError: nobody there")
        == 1
    )
    assert f"done: {STEPS}/{STEPS} steps" in said
    found = scalars(run.folder)
    assert [step for step, _, _ in found["trainer/reward"]] == list(range(1, STEPS + 1))
    assert (
        len(found["trainer/wait_s"]) >= STEPS - 1
    )  # that of a step is lost if its trainer died before it could say
    assert found["idle/trainer"]
    observed = [json.loads(line) for line in run.paths().observed_path.read_text().splitlines()]
    steps = [entry["step"] for entry in observed]
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS
    assert observed[-1]["version/engine-0"] >= 0
    assert read_statuses(sinks)["tensorboard"].step == STEPS
    assert read_statuses(sinks)[f"{HERE}:Broken"].failures == 1
