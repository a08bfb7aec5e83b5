"""Processes of a real run are stopped for longer than every limit: the run replaces them, and nobody is
judged for it.

Starting and ending a run costs far more than what is looked at here. So a run loses one process, goes on, and
loses the next. Only a lost fork server is not replaced.
"""

import contextlib
import json
import re
import signal
import time
from collections import Counter

import psutil
from sqlalchemy import select

from harnessgym.store import TraceStore, runs, tables, workers
from tests.harnessgym.rollout.tiny import HERE
from tests.test_bad_input_runs import descendants, make_run  # noqa: F401 - a fixture

SILENT_S = 10.0
"""Longer than the harness may take: `Conversing.limits`."""
GROUPS_PER_STEP, GROUP_SIZE = 2, 2
WELL = ("finished", "valid", 1.0)


def start_conversing(make_run, steps, engines=2, **sections):  # noqa: F811
    """A run whose harnesses have calls open nearly all the time."""
    return make_run(
        "converses",
        tasks={"set": f"{HERE}:Conversing"},
        engine={"workers": engines, "max_length": 256},
        trainer={"steps": steps, "groups_per_step": GROUPS_PER_STEP, "group_size": GROUP_SIZE},
        supervisor={"silent_s": SILENT_S},
        **sections,
    ).start()


def engine_states(run):
    with TraceStore.open(run.paths().store_url()) as store:
        found = store.read(lambda conn: workers.engines_of(conn, runs.only(conn).id))
    return [row.state for row in found]


def silent(run):
    """What the dashboard knows of silent processes."""
    with contextlib.suppress(FileNotFoundError):
        return json.loads(run.paths().silent_path.read_text())
    return {}


def running_attempts(run):
    """Ids of the attempts at rollouts that are running now."""
    query = select(tables.rollouts.c.id).where(tables.rollouts.c.status == "running")
    return set(run.read(lambda conn: conn.execute(query).scalars().all()))


def failures(run):
    """How often attempts have ended in which way, except well."""
    return Counter(row for row in run.attempts() if row[0] is not None and row != WELL)


def wait_for_a_step(run):
    """Wait until a step is taken and rollouts are running."""
    steps = run.steps()
    run.wait(lambda: run.steps() > steps)
    run.wait(lambda: run.running() > 0)


def stop_until_silent(run, name):
    """Stop a process until the run finds it silent, which must name it, end it and start it again once; then
    wait for the run to go on. Returns how the attempts ended that failed meanwhile.
    """
    failed, words, victim = failures(run), len(run.said()), run.pids()[name]
    victim.signal(signal.SIGSTOP)
    run.wait(lambda: name in silent(run))
    run.wait(lambda: not victim.alive())
    hit = running_attempts(run)
    run.wait(lambda: not hit & running_attempts(run))
    wait_for_a_step(run)
    said = run.said()[words:]
    assert re.search(
        rf"The {name} process \(pid {victim.pid}\) has been silent for [1-9]\d s: it was stopped or hangs",
        said,
    ), said
    assert re.findall(r"The (\S+) process ended \(status -9\) while (\S+); starting it again\.", said) == [
        (name, "training")
    ]
    assert said.count("has been silent") == 1
    assert name not in silent(run)
    return set(failures(run) - failed)


def infrastructure_errors(*reasons):
    return {(reason, "infrastructure_error", None) for reason in reasons}


def stop_as_a_whole(run):
    """Stop the supervisor and everything below it for longer than `SILENT_S`; it goes on with the same
    processes. Returns how the attempts ended that failed meanwhile.
    """
    failed, words, before = failures(run), len(run.said()), run.pids()
    hit, everything = running_attempts(run), descendants(run.process.pid)
    run.process.send_signal(signal.SIGSTOP)
    for process in everything:
        process.signal(signal.SIGSTOP)
    time.sleep(SILENT_S + 3)
    for process in everything:
        process.signal(signal.SIGCONT)
    run.process.send_signal(signal.SIGCONT)
    run.wait(lambda: not hit & running_attempts(run))
    wait_for_a_step(run)
    assert run.pids() == before
    assert "silent" not in run.said()[words:]
    return set(failures(run) - failed)


def assert_sound(run, steps):
    """The run has come to its end. Nobody was judged for what happened in it, and nothing is left of it."""
    assert run.steps() == steps
    found = run.attempts()
    assert found.count(WELL) >= steps * GROUPS_PER_STEP * GROUP_SIZE
    assert {verdict for _, verdict, reward in found if reward is None} <= {"infrastructure_error"}
    assert {row for row in found if row[2] is not None} == {WELL}
    assert set(engine_states(run)) == {"ended"}
    assert not silent(run)
    run.assert_verified()
    run.assert_nothing_is_left()


def end_without_fork_server(run, number, steps):
    """Send the fork server and an engine a signal each, and let the run come to its end."""
    (server,) = (
        child for child in psutil.Process(run.process.pid).children() if "fork-server" in child.cmdline()
    )
    before, words = run.pids(), len(run.said())
    assert before.keys() >= {"proxy", "engine-0", "node", "trainer"}
    server.send_signal(number)
    before["engine-0"].signal(signal.SIGKILL)
    said = run.end()[words:]
    assert "The fork server was lost" in said
    assert [name for name in before if f"The {name} process ended (status -9)" not in said] == []
    assert [name for name, process in before.items() if process.alive()] == []
    assert_sound(run, steps)


def test_stopped_processes_are_replaced_and_nobody_is_judged_for_it(make_run):  # noqa: F811
    steps = 12
    run = start_conversing(make_run, steps)
    wait_for_a_step(run)
    assert stop_until_silent(run, "trainer") == set()
    assert stop_until_silent(run, "node") == infrastructure_errors("node_lost")
    # A call that had reached its engine when the proxy was stopped is the engine's failure.
    ends = stop_until_silent(run, "proxy")
    assert ends
    assert ends <= infrastructure_errors("sandbox_error", "engine_error")
    assert stop_as_a_whole(run) <= infrastructure_errors("sandbox_error")
    # An engine may have had no call with output: then all of its calls go on at the other one.
    assert stop_until_silent(run, "engine-0") <= infrastructure_errors("engine_error")
    failed = failures(run)
    said = run.end()
    assert said.count("starting it again") == said.count("has been silent") == 4
    assert (failures(run) - failed).keys() <= infrastructure_errors("engine_error")
    assert_sound(run, steps)


def test_an_evaluation_during_which_an_engine_stops_finds_what_it_would_have(make_run):  # noqa: F811
    """And so it does after the fork server was killed, which takes every process along."""
    steps = 5  # the other engine may be through with the evaluation before the silence is noticed
    run = start_conversing(make_run, steps, node={"max_running": 3}, evaluation={"tasks": 3})
    run.wait(lambda: run.running() >= 3)
    victim = run.pids()["engine-0"]
    victim.signal(signal.SIGSTOP)
    run.wait(lambda: "has been silent" in run.said())
    assert re.search(rf"The engine-0 process \(pid {victim.pid}\) has been silent for [1-9]\d s", run.said())
    run.wait(lambda: run.pids()["engine-0"] != victim)
    run.wait(lambda: run.steps() >= 1 and run.running() > 0)
    # A call that had no output yet goes to the other engine, so that no attempt need be lost.
    assert failures(run).keys() <= infrastructure_errors("engine_error")
    end_without_fork_server(run, signal.SIGKILL, steps)
    summary = json.loads(run.paths().summary_path.read_text())
    assert (summary["success_before"], summary["greedy_before"], summary["gain"]) == (1.0, 1.0, 0.0)
    assert set(summary["evaluation"]["rollouts"].values()) == {3}


def test_a_fork_server_that_is_stopped_costs_no_verdict(make_run):  # noqa: F811
    """It is found out when a process is to be started again."""
    run = start_conversing(make_run, 2, engines=1)
    wait_for_a_step(run)
    end_without_fork_server(run, signal.SIGSTOP, 2)
