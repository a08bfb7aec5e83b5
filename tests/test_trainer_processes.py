"""A whole run whose trainer is two processes, of which one is killed in the middle of a step."""

import itertools
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import select

from harnessgym.store import TraceStore, ledger, policies, rollouts, runs
from harnessgym.store.tables import trained
from harnessgym.supervisor.progress import read_metrics
from tests.harnessgym.rollout.tiny import HERE as TINY
from tests.test_bad_input_runs import Run, descendants
from trainers import checkpoint
from trainers.advantages.group_relative import grpo

HERE = "tests.test_trainer_processes"
STEPS = 3
calls = itertools.count(1)


def held_once(rewards):
    """The estimator, which in the second step of the first trainer says who asks and answers no more."""
    mark = Path(os.environ["HELD_MARK"])
    if next(calls) == 3 and not mark.exists():
        mark.with_suffix(".new").write_text(str(os.getpid()))
        mark.with_suffix(".new").rename(mark)
        time.sleep(600)
    return grpo(rewards)


@pytest.mark.timeout(240)
def test_a_run_whose_trainer_loses_a_process_in_mid_step_goes_on_and_trains_nothing_twice(
    tmp_path, monkeypatch
):
    mark = tmp_path / "held"
    monkeypatch.setenv("HELD_MARK", str(mark))
    options = {"processes": 2, "steps": STEPS, "advantage": f"{HERE}:held_once"}
    run = Run(tmp_path, "good", tasks={"set": f"{TINY}:Mixed"}, trainer=options).start()
    try:
        run.wait(mark.exists, timeout_s=120)
        leader = int(mark.read_text())
        members = descendants(run.pids()["trainer"].pid)
        (follower,) = [member for member in members if member.pid != leader]
        follower.signal(signal.SIGKILL)
        run.wait(lambda: not any(member.alive() for member in members))
        said = run.end(timeout_s=150)
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
    assert "The trainer process ended (status 1) while training; starting it again." in said
    assert (
        f"rank 1 (pid {follower.pid}) was killed by SIGKILL" in (run.paths().logs / "trainer.log").read_text()
    )
    assert [line["step"] for line in read_metrics(run.paths())] == list(range(1, STEPS + 1))
    with TraceStore.open(run.paths().store_url()) as store:
        only = store.read(runs.only)
        policy_id = store.write(lambda conn: policies.register(conn, only.id, "policy"))
        assert store.read(lambda conn: ledger.steps(conn, policy_id)) == list(range(1, STEPS + 1))
        assert store.read(lambda conn: rollouts.group_states(conn, only.id, "train"))["consumed"] == 2 * STEPS
        counted = Counter(
            store.read(lambda conn: [rollout for (rollout,) in conn.execute(select(trained.c.rollout_id))])
        )
    assert len(counted) == 2 * 4 * STEPS
    assert set(counted.values()) == {1}
    assert len(checkpoint.load_newest(run.paths().checkpoints).randoms) == 2
    run.assert_verified()
    run.assert_nothing_is_left()
