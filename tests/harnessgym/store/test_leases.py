import subprocess
import sys
import time

from harnessgym.store import leases


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
