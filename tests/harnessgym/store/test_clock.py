"""Processes whose clocks differ agree on what is over: they ask the database for the time."""

import json
import subprocess
import sys
import time

import pytest
from sqlalchemy import select

from harnessgym.store import TraceStore, clock, leases, policies, rollouts, runs, sessions, workers
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.tables import rollouts as table
from harnessgym.store.workers import WorkerRow
from harnessgym.task import Task

OTHER_MACHINE = """
import json, sys, time
from functools import partial
from harnessgym.outcome.failure import StopReason
from harnessgym.store import TraceStore, leases, rollouts, sessions, workers
from harnessgym.store.rollouts import RolloutOutcome
from harnessgym.store.workers import WorkerRow

url, run = sys.argv[1:]
with TraceStore.open(url) as store:
    seen = {
        "clock": time.time(),
        "holder": store.read(partial(leases.holder_of, resource="held by us")),
        "free": store.read(partial(leases.holder_of, resource="over")),
        "nodes": store.read(partial(leases.nodes, run_id=run)),
        "engines": [row.state for row in store.read(partial(workers.engines_of, run_id=run))],
        "lost": store.read(partial(rollouts.lost, run_id=run)),
        "age": store.read(partial(sessions.by_key, key="key")).age_s,
    }
    store.write(partial(leases.acquire, resource="held by them", holder="them", ttl_s=60.0))
    store.write(partial(leases.announce_node, run_id=run, holder="their node", ttl_s=60.0))
    store.write(partial(workers.upsert, worker=WorkerRow("theirs", run, "vllm", "http://b", 0, "ready")))
    store.write(partial(workers.show, worker_id="theirs", ttl_s=60.0))
    first, second = store.write(partial(rollouts.claim, run_id=run, holder="their node", ttl_s=60.0, limit=2))
    seen["claimed"] = [first.id, second.id]
    outcome = RolloutOutcome(second.id, StopReason.SANDBOX_ERROR, "infrastructure_error")
    store.write(partial(rollouts.fail, outcome=outcome, max_attempts=3, wait_s=60.0))
print(json.dumps(seen))
"""


@pytest.mark.parametrize(
    ("kind", "ahead_s"),
    [
        ("sqlite", 0),  # those who use a file are on one machine
        pytest.param("postgresql", 3_600, marks=pytest.mark.postgres),
        pytest.param("postgresql", -3_600, marks=pytest.mark.postgres),
    ],
)
def test_a_machine_whose_clock_is_wrong_takes_nothing_and_loses_nothing(url, ahead_s, skewed_clock):
    with TraceStore.open(url) as store:
        run = store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
        policy = store.write(lambda conn: policies.register(conn, run, "policy"))
        task = store.write(lambda conn: runs.add_task(conn, "set", Task("t", "Do it.")))
        spec = GroupSpec(run, task, policy, "train", 0, 0, {}, ("h",) * 4, "process", (0,) * 4)
        store.write(lambda conn: rollouts.submit(conn, spec))
        ours = store.write(lambda conn: rollouts.claim(conn, run, "our node", 60.0, 1))[0].id
        store.write(lambda conn: sessions.add(conn, ours, "key", sampling={}))
        store.write(lambda conn: leases.acquire(conn, "held by us", "us", 60.0))
        store.write(lambda conn: leases.acquire(conn, "over", "us", 0.0))
        store.write(lambda conn: leases.announce_node(conn, run, "our node", 60.0))
        store.write(lambda conn: workers.upsert(conn, WorkerRow("ours", run, "vllm", "http://a", 0, "ready")))
        store.write(lambda conn: workers.show(conn, "ours", 60.0))

        command = [sys.executable, "-c", OTHER_MACHINE, url, run]
        done = subprocess.run(
            command, env=skewed_clock(ahead_s), capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stdout)
        assert abs(seen.pop("clock") - time.time() - ahead_s) < 300
        theirs, failed = seen.pop("claimed")
        assert 0 <= seen.pop("age") < 300
        assert seen == {"holder": "us", "free": None, "nodes": 1, "engines": ["ready"], "lost": []}

        assert store.read(lambda conn: leases.holder_of(conn, "held by them")) == "them"
        assert not store.write(lambda conn: leases.acquire(conn, "held by them", "us", 60.0))
        assert store.read(lambda conn: leases.nodes(conn, run)) == 2
        assert [row.state for row in store.read(lambda conn: workers.engines_of(conn, run))] == [
            "ready",
            "ready",
        ]
        assert store.read(lambda conn: rollouts.lost(conn, run)) == []
        left = store.write(lambda conn: rollouts.claim(conn, run, "our node", 60.0, 9))
        assert len(left) == 1, "the attempt that another machine put off is not due"
        times = [table.c.id, table.c.created_at, table.c.started_at, table.c.ended_at]
        rows = store.read(lambda conn: {row.id: row for row in conn.execute(select(*times))})
        now = store.read(clock.read)
        assert 0 <= now - rows[theirs].started_at < 300
        assert rows[failed].created_at <= rows[failed].started_at <= rows[failed].ended_at <= now


def test_the_time_is_that_of_the_moment(store):
    before = time.time()
    times = [store.read(clock.read) for _ in range(3)]
    assert times == sorted(times)
    assert abs(times[0] - before) < 60  # of this machine's PostgreSQL too
