"""Processes of a real run are stopped for longer than every limit: the run replaces them, and nobody is
judged for it.
"""

import contextlib
import json
import re
import signal
import time

import psutil
import pytest

from harnessgym.store import TraceStore, runs, workers
from tests.harnessgym.rollout.tiny import HERE
from tests.test_bad_input_runs import descendants, make_run  # noqa: F401 - a fixture

SILENT_S = 10.0
"""Longer than the harness may take: `Conversing.limits`."""
STEPS = 3
WELL = ("finished", "valid", 1.0)


@pytest.fixture
def started(make_run):  # noqa: F811
    """A run whose harnesses have calls open nearly all the time; it has taken its first step."""
    run = make_run(
        "converses",
        tasks={"set": f"{HERE}:Conversing"},
        engine={"workers": 2, "max_length": 256},
        trainer={"steps": STEPS},
        supervisor={"silent_s": SILENT_S},
    ).start()
    run.wait(lambda: run.steps() >= 1)
    run.wait(lambda: run.running() > 0)
    return run


def engine_states(run):
    with TraceStore.open(run.paths().store_url()) as store:
        found = store.read(lambda conn: workers.engines_of(conn, runs.only(conn).id))
    return [row.state for row in found]


def assert_replaced(run, name, victim, said):
    """The process was named and ended, and started again once; the run has come to its end."""
    assert re.search(
        rf"The {name} process \(pid {victim.pid}\) has been silent for [1-9]\d s: it was stopped or hangs",
        said,
    )
    assert said.count(f"The {name} process ended (status -9) while training; starting it again.") == 1
    assert not victim.alive()
    assert run.steps() == STEPS
    assert engine_states(run) == ["ended", "ended"]
    run.assert_verified()
    run.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("trainer", ()),
        ("node", ("node_lost",)),
        # A call that had reached its engine when the proxy was stopped is the engine's failure.
        ("proxy", ("sandbox_error", "engine_error")),
        ("engine-0", ("engine_error",)),
    ],
)
def test_a_stopped_process_is_replaced_and_nobody_is_judged_for_it(started, name, ends):
    victim = started.pids()[name]
    victim.signal(signal.SIGSTOP)
    started.wait(lambda: name in silent(started))
    said = started.end()
    assert_replaced(started, name, victim, said)
    found = started.attempts()
    assert found.count(WELL) >= STEPS * 8
    others = {row for row in found if row != WELL}
    assert others <= {(reason, "infrastructure_error", None) for reason in ends}
    # An engine may have had no call with output: then all of its calls go on at the other one.
    assert bool(others) == bool(ends) or name == "engine-0"
    assert not silent(started)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_fork_server_that_is_lost_costs_no_verdict(started, number):
    """Killed, it takes every process along. Stopped, it is found out when one is to be started again."""
    (server,) = (
        child for child in psutil.Process(started.process.pid).children() if "fork-server" in child.cmdline()
    )
    before = started.pids()
    server.send_signal(number)
    before["engine-0"].signal(signal.SIGKILL)
    said = started.end()
    assert "The fork server was lost" in said
    assert all(f"The {name} process ended (status -9)" in said for name in before)
    assert not any(process.alive() for process in before.values())
    assert started.steps() == STEPS
    found = started.attempts()
    assert found.count(WELL) >= STEPS * 8
    assert {verdict for _, verdict, reward in found if reward is None} <= {"infrastructure_error"}
    assert {row for row in found if row[2] is not None} == {WELL}
    started.assert_verified()
    started.assert_nothing_is_left()


def silent(run):
    """What the dashboard knows of silent processes."""
    with contextlib.suppress(FileNotFoundError):
        return json.loads(run.paths().silent_path.read_text())
    return {}


def test_an_evaluation_during_which_an_engine_stops_finds_what_it_would_have(make_run):  # noqa: F811
    run = make_run(
        "converses",
        tasks={"set": f"{HERE}:Conversing"},
        engine={"workers": 2, "max_length": 256},
        node={"max_running": 3},
        trainer={"steps": 1},
        evaluation={"tasks": 3},
        supervisor={"silent_s": SILENT_S},
    ).start()
    run.wait(lambda: run.running() >= 3)
    victim = run.pids()["engine-0"]
    victim.signal(signal.SIGSTOP)
    said = run.end()
    assert re.search(rf"The engine-0 process \(pid {victim.pid}\) has been silent for [1-9]\d s", said)
    summary = json.loads(run.paths().summary_path.read_text())
    assert (summary["success_before"], summary["greedy_before"], summary["gain"]) == (1.0, 1.0, 0.0)
    assert set(summary["evaluation"]["rollouts"].values()) == {3}
    # A call that had no output yet goes to the other engine, so that no attempt need be lost.
    attempts = run.attempts()
    assert {row for row in attempts if row != WELL} <= {("engine_error", "infrastructure_error", None)}
    run.assert_verified()


def test_a_run_that_is_stopped_as_a_whole_goes_on_with_the_same_processes(started):
    before = started.pids()
    everything = descendants(started.process.pid)
    started.process.send_signal(signal.SIGSTOP)
    for process in everything:
        process.signal(signal.SIGSTOP)
    time.sleep(SILENT_S + 3)
    for process in everything:
        process.signal(signal.SIGCONT)
    started.process.send_signal(signal.SIGCONT)
    steps = started.steps()
    started.wait(lambda: started.steps() > steps)
    assert started.pids().items() <= before.items()
    assert "silent" not in started.end()
    assert started.steps() == STEPS
    found = started.attempts()
    assert found.count(WELL) >= STEPS * 8
    assert {row for row in found if row != WELL} <= {("sandbox_error", "infrastructure_error", None)}
    started.assert_verified()
