"""Leases have one holder at a time, and nodes count from their announcement until they leave or fall silent."""

import subprocess
import sys
import time

from sqlalchemy import func, select

from harnessgym.store import TraceStore, leases
from harnessgym.store.tables import leases as table


def take(store, holder, ttl_s=60.0):
    return store.write(lambda conn: leases.acquire(conn, "update", holder, ttl_s))


def test_one_holder_at_a_time(store):
    assert take(store, "a")
    assert take(store, "a")
    assert not take(store, "b")
    assert store.read(lambda conn: leases.holder_of(conn, "update")) == "a"


def test_a_released_lease_is_free_and_only_its_holder_releases_it(store):
    take(store, "a")
    store.write(lambda conn: leases.release(conn, "update", "b"))
    assert not take(store, "b")
    store.write(lambda conn: leases.release(conn, "update", "a"))
    assert store.read(lambda conn: leases.holder_of(conn, "update")) is None
    assert take(store, "b")


def test_an_expired_lease_goes_to_who_asks_next(store):
    take(store, "a", ttl_s=0.05)
    time.sleep(0.06)
    assert store.read(lambda conn: leases.holder_of(conn, "update")) is None
    assert take(store, "b")
    assert not store.write(lambda conn: leases.renew(conn, "update", "a", 60.0))
    assert not take(store, "a")


def test_a_renewed_lease_lives_on(store):
    take(store, "a", ttl_s=0.3)
    assert store.write(lambda conn: leases.renew(conn, "update", "a", 60.0))
    time.sleep(0.31)
    assert not take(store, "b")


RACER = """
import sys
from harnessgym.store import TraceStore, leases
with TraceStore.open(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    print(sum(store.write(lambda conn: leases.acquire(conn, f"r{n}", sys.argv[2], 60.0)) << n for n in range(20)))
"""


def test_of_two_processes_that_race_exactly_one_gets_each_lease(store):
    def start(name):
        command = [sys.executable, "-c", RACER, store.url, name]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    racers = [start(name) for name in "ab"]
    for process in racers:
        assert process.stdout.readline() == "ready\n"
    for process in racers:
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [int(process.communicate(timeout=60)[0]) for process in racers]
    assert won[0] ^ won[1] == (1 << 20) - 1


def test_nodes_count_from_show_to_leave(url):
    with TraceStore.open(url) as store:
        assert store.read(lambda conn: leases.nodes(conn, "run")) == 0
        for holder in ("node-0@a-1-2", "node-1@b-1-2", "node-0@a-1-2"):
            store.write(lambda conn, holder=holder: leases.announce_node(conn, "run", holder, 60.0))
        store.write(lambda conn: leases.announce_node(conn, "run%", "node-0@a-1-2", 60.0))
        store.write(lambda conn: leases.acquire(conn, "update:run:0", "engine-0", 60.0))
        assert store.read(lambda conn: leases.nodes(conn, "run")) == 2
        assert store.read(lambda conn: leases.nodes(conn, "r%")) == 0
        store.write(lambda conn: leases.withdraw_node(conn, "run", "node-0@a-1-2"))
        store.write(lambda conn: leases.withdraw_node(conn, "run", "nobody"))
        assert store.read(lambda conn: leases.nodes(conn, "run")) == 1


def test_who_was_silent_for_too_long_is_gone_and_forgotten(url):
    with TraceStore.open(url) as store:
        store.write(lambda conn: leases.announce_node(conn, "run", "lost", 0.05))
        store.write(lambda conn: leases.announce_node(conn, "other", "lost", 0.05))
        time.sleep(0.1)
        assert store.read(lambda conn: leases.nodes(conn, "run")) == 0
        store.write(lambda conn: leases.announce_node(conn, "run", "there", 60.0))
        assert store.read(lambda conn: leases.nodes(conn, "run")) == 1
        count = select(func.count()).select_from(table)
        assert (
            store.read(lambda conn: conn.execute(count).scalar_one()) == 2
        )  # the other run's is not ours to remove
