"""Processes of a real run are stopped for longer than every limit: the run replaces them, and nobody is
judged for it.
"""

import contextlib
import json
import re
import signal
import time

import pytest
from sqlalchemy import select

from harnessgym.store import TraceStore, runs, workers
from harnessgym.store.tables import rewards, rollouts
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


def attempts(run):
    """Stop reason, verdict and reward of every attempt at a rollout."""
    reward = (rewards.c.rollout_id == rollouts.c.id) & (rewards.c.channel == "reward")
    columns = rollouts.c.stop_reason, rollouts.c.verdict, rewards.c.value
    with TraceStore.open(run.paths().store_url()) as store:
        query = select(*columns).select_from(rollouts.outerjoin(rewards, reward))
        return [tuple(row) for row in store.read(lambda conn: conn.execute(query).all())]


def engine_states(run):
    with TraceStore.open(run.paths().store_url()) as store:
        found = store.read(lambda conn: workers.engines_of(conn, runs.only(conn).id))
    return [row.state for row in found]


def assert_replaced(run, name, victim, said):
    """The process was named and ended, and started again once; the run has come to its end."""
    assert re.search(
        rf"The {name} process \(pid {victim.pid}\) has been silent for 1\d s: it was stopped or hangs", said
    )
    assert said.count(f"The {name} process ended (status -9) while training; starting it again.") == 1
    assert not victim.alive()
    assert run.steps() == STEPS
    assert engine_states(run) == ["ended", "ended"]
    run.assert_verified()
    run.assert_nothing_is_left()


@pytest.mark.parametrize(("name", "ends"), [("trainer", ()), ("node", ("node_lost",))])
def test_a_stopped_process_is_replaced_and_nobody_is_judged_for_it(started, name, ends):
    victim = started.pids()[name]
    victim.signal(signal.SIGSTOP)
    started.wait(lambda: name in silent(started))
    said = started.end()
    assert_replaced(started, name, victim, said)
    found = attempts(started)
    assert found.count(WELL) >= STEPS * 8
    assert {row for row in found if row != WELL} == {
        (reason, "infrastructure_error", None) for reason in ends
    }
    assert not silent(started)


def silent(run):
    """What the dashboard knows of silent processes."""
    with contextlib.suppress(FileNotFoundError):
        return json.loads(run.paths().silent_path.read_text())
    return {}


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
    started.assert_verified()
