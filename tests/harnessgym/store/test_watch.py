"""Who waits hears of what others write where the database tells, and looks again where it does not."""

import asyncio
import signal
import threading
import time
from functools import partial

import pytest
from sqlalchemy import update

from harnessgym.outcome.failure import StopReason
from harnessgym.store import TraceStore, leases, policies, rollouts, runs
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.store.tables import groups
from harnessgym.store.tables import rollouts as rollout_rows
from harnessgym.store.workers import WorkerRow, upsert
from tests.support.postgres import PostgresServer

LONG = 20.0
"""Longer than a test waits."""


@pytest.fixture(scope="module")
def own():
    """A server that a test may end."""
    with PostgresServer() as cluster:
        yield cluster


def waited(watch, asynchronous):
    """Seconds that one wait takes."""
    began = time.monotonic()
    asyncio.run(watch.changed()) if asynchronous else watch.wait()
    return time.monotonic() - began


def changes(store, rollout_id):
    """One of every kind that others wait for."""
    run_id = store.read(lambda conn: runs.only(conn).id)
    policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
    version = policies.PolicyVersion(0, None, "full", "here", 0, "sum", 0, committed=True, orphaned=False)
    store.write(lambda conn: leases.acquire(conn, "r", "h", 60.0))
    return {
        "a version": lambda conn: policies.publish(conn, policy_id, version),
        "an orphan": lambda conn: policies.orphan_after(conn, policy_id, -1),
        "a worker": lambda conn: upsert(conn, WorkerRow("w", run_id, "embedded", "unix:w", 0, "ready")),
        "its version": lambda conn: upsert(conn, WorkerRow("w", run_id, "embedded", "unix:w", 1, "ready")),
        "a lease": lambda conn: leases.release(conn, "r", "h"),
        "a rollout that failed": lambda conn: rollouts.fail(
            conn, RolloutOutcome(rollout_id, StopReason.SANDBOX_ERROR, "infrastructure_error"), 2
        ),
        "a claim": lambda conn: rollouts.claim(conn, run_id, "h", 60.0, 1),
        "a batch": lambda conn: conn.execute(update(groups).values(batch=1, place=0)),
        "a run's end": lambda conn: runs.set_status(conn, run_id, "done"),
    }


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_wait_ends_with_a_change(store, kind, rollout_id, asynchronous):
    made = changes(store, rollout_id)
    with TraceStore.open(store.url) as other, other.watch(0.3, LONG) as watch:
        for what, change in made.items():
            threading.Timer(0.1, store.write, [change]).start()
            took = waited(watch, asynchronous)
            assert 0.29 < took < LONG / 2 if kind == "sqlite" else took < LONG / 2, what
            time.sleep(0.2)


@pytest.mark.postgres
@pytest.mark.parametrize("asynchronous", [False, True])
class TestListening:
    @pytest.fixture
    def kind(self):
        return "postgresql"

    def test_what_changed_before_the_wait_ends_it_at_once_and_only_one(self, store, rollout_id, asynchronous):
        made = list(changes(store, rollout_id).values())
        with store.watch(0.05, 2.0) as watch:
            for change in made[:3]:
                store.write(change)
            assert waited(watch, asynchronous) < 1.5
            assert waited(watch, asynchronous) >= 1.9

    def test_nobody_is_woken_for_what_changes_nothing(self, store, rollout_id, asynchronous):
        store.write(lambda conn: leases.acquire(conn, "r", "h", 60.0))
        with store.watch(0.05, 0.5) as watch:
            store.write(lambda conn: rollouts.renew(conn, [rollout_id], "node", 60.0))
            store.write(lambda conn: leases.renew(conn, "r", "h", 60.0))
            store.write(
                lambda conn: conn.execute(
                    update(rollout_rows).values(status="lost").where(rollout_rows.c.id == "none")
                )
            )
            assert waited(watch, asynchronous) >= 0.49

    def test_while_the_server_is_away_it_looks_again_and_then_hears_again(self, own, asynchronous):
        with TraceStore.create(own.create_database()) as store, store.watch(0.05, LONG) as watch:
            stopping = threading.Timer(0.2, partial(own.stop, signal.SIGINT))
            stopping.start()
            assert waited(watch, asynchronous) < 5.0
            stopping.join()
            own.start()
            assert waited(watch, asynchronous) < 5.0
            store.write(lambda conn: runs.add(conn, "demo", {}, "test", "training"))
            run_id = store.read(lambda conn: runs.only(conn).id)
            waited_for = threading.Timer(
                0.3, store.write, [lambda conn: runs.set_status(conn, run_id, "done")]
            )
            waited_for.start()
            assert 0.05 < waited(watch, asynchronous) < 2.0
            waited_for.join()


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_wait_that_is_cancelled_loses_no_change(store, rollout_id, kind):
    change = changes(store, rollout_id)["a worker"]

    async def cancelled_then_changed(watch):
        for _ in range(3):
            task = asyncio.create_task(watch.changed())
            await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.wait({task})
        await store.awrite(change)
        await asyncio.wait_for(watch.changed(), 2.0)

    with store.watch(0.05, LONG) as watch:
        asyncio.run(cancelled_then_changed(watch))
