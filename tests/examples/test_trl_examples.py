"""The TRL examples as trainers of a real run: proxy, engine, node and agents go on, engines serve what TRL
trained.

The asynchronous one runs behind the shims that it needs on a CPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harnessgym.store import TraceStore, ledger, policies, runs, workers
from harnessgym.traces.verification.verify import verify

ROOT = Path(__file__).parents[2]
STEPS = 2


@pytest.mark.parametrize(
    "algorithm", ["examples.trl_grpo:train", "tests.trainers.trl_bridge.cpu_shims:train"]
)
def test_trl_trains_a_run(algorithm, tmp_path):
    settings = {
        "trainer.algorithm": algorithm, "trainer.steps": STEPS, "trainer.groups_per_step": 2, "trainer.group_size": 2,
        "evaluation.tasks": 0, "engine.workers": 1, "sandbox.backend": "process",
    }  # fmt: skip
    argv = [
        sys.executable,
        "-m",
        "harnessgym",
        "train",
        "examples/quickstart.toml",
        "--folder",
        str(tmp_path / "run"),
    ]
    argv += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        argv, env=os.environ, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with TraceStore.open(f"sqlite:///{tmp_path}/run/traces.db") as store:
        run = store.read(runs.only)
        (policy_id,) = store.read(lambda conn: policies.of_run(conn, run.id)).values()
        versions = store.read(lambda conn: policies.versions(conn, policy_id))
        assert [(item.version, item.step, item.committed) for item in versions] == [
            (n, n, True) for n in range(STEPS + 1)
        ]
        assert store.read(lambda conn: ledger.steps(conn, policy_id)) == [*range(1, STEPS + 1)]
        assert verify(store).ok
        assert max(worker.version for worker in store.read(lambda conn: workers.of_run(conn, run.id))) >= 1
