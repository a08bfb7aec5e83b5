"""What only a server does: it restarts, refuses, and serves several writers side by side."""

import contextlib
import signal
import threading
import time
from concurrent.futures import Future

import pytest
from sqlalchemy import insert, select, text

from harnessgym.errors import StoreError, StoreUnavailable
from harnessgym.outcome.failure import StopReason
from harnessgym.store import TraceStore, policies, rollouts, runs
from harnessgym.store.rollouts import GroupSpec, RolloutOutcome
from harnessgym.store.tables import groups, leases, workers
from harnessgym.task import Task
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture
def kind():
    return "postgresql"


@pytest.fixture(scope="module")
def own():
    """A server that a test may end."""
    with PostgresServer() as cluster:
        yield cluster


@pytest.fixture
def own_store(own):
    with TraceStore.create(own.create_database()) as store:
        yield store


def add(name):
    return lambda conn: conn.execute(insert(leases).values(resource=name, holder="h", expires=0.0)) and name


def names(store):
    return set(store.read(lambda conn: conn.execute(select(leases.c.resource)).scalars()))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_server_that_restarts_loses_no_write_that_returned_and_the_writer_goes_on(own, own_store, how):
    kept, refused, stop = [], [], threading.Event()

    def write(thread):
        number = 0
        while not stop.is_set():
            number += 1
            try:
                kept.append(own_store.write(add(f"{thread}-{number}")))
            except StoreError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = len(kept)
        while len(kept) < before + 200:
            time.sleep(0.005)
        own.stop(how)
        time.sleep(0.3)
        own.start()
    before = len(kept)
    while len(kept) < before + 100:
        time.sleep(0.005)
    stop.set()
    for thread in threads:
        thread.join()
    assert set(kept) <= names(own_store)
    assert all("check whether the write was stored" in said for said in refused), refused


def test_a_read_waits_for_a_server_that_restarts(own, own_store):
    assert names(own_store) == set()
    own.stop()
    back = threading.Timer(0.7, own.start)
    back.start()
    assert names(own_store) == set()
    back.join()


def test_of_a_server_that_stays_away_all_hear_at_one_time_and_who_asks_later_at_once(own):
    url = own.create_database()
    TraceStore.create(url).close()
    with TraceStore.open(f"{url}&connect_timeout=2") as store:
        store.write(add("before"))
        own.stop()
        began = time.monotonic()
        futures = [store.submit(add(str(number))) for number in range(5)]
        for future in futures:
            with pytest.raises(StoreUnavailable, match="does not answer"):
                future.result()
        assert 2 < time.monotonic() - began < 4
        for use in (lambda: names(store), lambda: store.write(add("later"))):
            began = time.monotonic()
            with pytest.raises(StoreUnavailable, match="does not answer"):
                use()
            assert time.monotonic() - began < 1
        own.start()
        store.write(add("after"))
        assert names(store) == {"before", "after"}


def test_a_connection_that_is_ended_within_a_write_is_made_anew(own_store):
    tried = []

    def work(conn):
        tried.append(conn.execute(text("SELECT pg_backend_pid()")).scalar_one())
        add("a")(conn)
        if len(tried) == 1:
            with TraceStore(own_store.url) as other:
                other.read(lambda conn: conn.execute(text(f"SELECT pg_terminate_backend({tried[0]})")))
        add("b")(conn)

    own_store.write(work)
    assert len(set(tried)) == 2
    assert names(own_store) == {"a", "b"}


def test_writers_in_each_others_way_are_tried_again(store):
    """Each holds a row that the other wants: the database undoes one of them."""
    for name in "ab":
        store.write(add(name))
    both = threading.Barrier(2)

    def crossing(first, second):
        def work(conn):
            for name in (first, second):
                conn.execute(
                    leases.update().where(leases.c.resource == name).values(holder=leases.c.holder + first)
                )
                if not both.broken:
                    with contextlib.suppress(threading.BrokenBarrierError):
                        both.wait(2)

        return work

    with TraceStore.open(store.url) as other:
        done: list[Future[None]] = [store.submit(crossing("a", "b")), other.submit(crossing("b", "a"))]
        for future in done:
            future.result(30)
    held = store.read(
        lambda conn: conn.execute(select(leases.c.holder).order_by(leases.c.resource)).scalars().all()
    )
    assert [sorted(holder) for holder in held] == [["a", "b", "h"]] * 2


def test_two_that_end_the_last_rollouts_of_a_group_at_once_complete_it(store):
    def prepare(conn):
        run = runs.add(conn, "demo", {}, "test", "training")
        policy, task = policies.register(conn, run, "policy"), runs.add_task(conn, "set", Task("t", "Do it."))
        group = rollouts.submit(
            conn, GroupSpec(run, task, policy, "train", 0, 0, {}, ("h", "h"), "process", (0, 1))
        )
        return group, [row.id for row in rollouts.claim(conn, run, "node", 60.0, 2)]

    with TraceStore.open(store.url) as other:
        for _ in range(10):
            group, ids = store.write(prepare)
            together = threading.Barrier(2)

            def work(conn, rollout_id, meet=together):
                ended = rollouts.finish(
                    conn, RolloutOutcome(rollout_id, StopReason.FINISHED, "valid", {"reward": 1.0})
                )
                conn.execute(text("SELECT pg_sleep(0.02)"))
                return meet, ended

            futures = [
                each.submit(lambda conn, i=i: work(conn, i))
                for each, i in zip((store, other), ids, strict=True)
            ]
            assert [future.result(30)[1] for future in futures] == [True, True]
            query = select(groups.c.state).where(groups.c.id == group)
            assert store.read(lambda conn, query=query: conn.execute(query).scalar_one()) == "complete"


def test_one_that_claims_passes_over_what_another_is_claiming(store):
    def prepare(conn):
        run = runs.add(conn, "demo", {}, "test", "training")
        policy, task = policies.register(conn, run, "policy"), runs.add_task(conn, "set", Task("t", "Do it."))
        rollouts.submit(conn, GroupSpec(run, task, policy, "train", 0, 0, {}, ("h", "h"), "process", (0, 1)))
        return run

    run = store.write(prepare)
    claimed, go = threading.Event(), threading.Event()

    def slow(conn):
        got = rollouts.claim(conn, run, "slow", 60.0, 1)
        claimed.set()
        assert go.wait(20)
        return got

    first = store.submit(slow)
    assert claimed.wait(20)
    with TraceStore.open(store.url) as other:
        second = other.write(lambda conn: rollouts.claim(conn, run, "quick", 60.0, 9))
    go.set()
    assert [row.slot for row in second] == [1]
    assert [row.slot for row in first.result()] == [0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.replace("/traces_", "/absent_"), r"There is no database .*createdb absent_"),
        (lambda url: url.replace("user=harnessgym", "user=stranger"), r"refuses this user"),
        (
            lambda url: url.replace("host=", "host=%2Fnowhere"),
            r"does not answer .*Start it, or correct the URL",
        ),
        (
            lambda _: "postgresql+psycopg://me:secret@127.0.0.1:1/x",
            r"does not answer at postgresql\+psycopg://me:\*\*\*@",
        ),
    ],
)
def test_a_database_that_cannot_be_opened_says_why_at_once(url, change, said):
    began = time.monotonic()
    with pytest.raises(StoreError, match=said):
        TraceStore.open(change(url))
    assert time.monotonic() - began < 5


def test_what_the_server_refuses_says_what_to_do(store):
    def refuse(state, text="words"):
        with pytest.raises(StoreError) as caught:
            store.write(
                lambda conn: conn.exec_driver_sql(
                    f"DO $$ BEGIN RAISE '{text}' USING ERRCODE = '{state}'; END $$"
                )
            )
        return str(caught.value)

    assert "is full (words). Free space" in refuse("53100")
    assert "stayed locked (words)" in refuse("55P03")
    assert "may not write" in refuse("42501")
    assert "refused: words" in refuse("22000")


def test_text_that_the_server_cannot_hold_is_kept_for_people(store):
    row = {
        "id": "w",
        "run_id": None,
        "kind": "k\0k",
        "address": "a",
        "version": 0,
        "state": "s",
        "updated_at": 0.0,
    }
    store.write(lambda conn: conn.execute(insert(workers).values(row)))
    assert store.read(lambda conn: conn.execute(select(workers.c.kind)).scalar_one()) == "k\ufffdk"
