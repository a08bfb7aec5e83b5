"""Which nodes are there: who shows itself counts until its lease ends, in its own run alone."""

import time

from sqlalchemy import func, select

from harnessgym.store import TraceStore, heartbeats, leases
from harnessgym.store.tables import leases as table


def test_nodes_count_from_show_to_leave(url):
    with TraceStore.open(url) as store:
        assert store.read(lambda conn: heartbeats.nodes(conn, "run")) == 0
        for holder in ("node-0@a-1-2", "node-1@b-1-2", "node-0@a-1-2"):
            store.write(lambda conn, holder=holder: heartbeats.show(conn, "run", holder, 60.0))
        store.write(lambda conn: heartbeats.show(conn, "run%", "node-0@a-1-2", 60.0))
        store.write(lambda conn: leases.acquire(conn, "update:run:0", "engine-0", 60.0))
        assert store.read(lambda conn: heartbeats.nodes(conn, "run")) == 2
        assert store.read(lambda conn: heartbeats.nodes(conn, "r%")) == 0
        store.write(lambda conn: heartbeats.leave(conn, "run", "node-0@a-1-2"))
        store.write(lambda conn: heartbeats.leave(conn, "run", "nobody"))
        assert store.read(lambda conn: heartbeats.nodes(conn, "run")) == 1


def test_who_was_silent_for_too_long_is_gone_and_forgotten(url):
    with TraceStore.open(url) as store:
        store.write(lambda conn: heartbeats.show(conn, "run", "lost", 0.05))
        store.write(lambda conn: heartbeats.show(conn, "other", "lost", 0.05))
        time.sleep(0.1)
        assert store.read(lambda conn: heartbeats.nodes(conn, "run")) == 0
        store.write(lambda conn: heartbeats.show(conn, "run", "there", 60.0))
        assert store.read(lambda conn: heartbeats.nodes(conn, "run")) == 1
        count = select(func.count()).select_from(table)
        assert (
            store.read(lambda conn: conn.execute(count).scalar_one()) == 2
        )  # the other run's is not ours to remove
