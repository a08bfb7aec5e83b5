"""What a group of writes promises when it runs in a pipeline: what each write promises alone."""

import contextlib
import threading
import time

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    func,
    insert,
    select,
    text,
    update,
)

from harnessgym.errors import StoreError, StoreUnavailable
from harnessgym.store import TraceStore
from harnessgym.store.backend import PIPELINE
from harnessgym.store.prepared import Prepared

pytestmark = pytest.mark.postgres
ROWS = Table(
    "pipeline_rows", MetaData(),
    Column("id", String, primary_key=True), Column("number", BigInteger), Column("real", Float),
    Column("yes", Boolean), Column("blob", LargeBinary), Column("json", JSON),
)  # fmt: skip
INSERT = Prepared(insert(ROWS), ROWS.c.keys())
UPDATE = Prepared(update(ROWS).where(ROWS.c.id == bindparam("key")).values(number=bindparam("number")))


@pytest.fixture
def kind():
    return "postgresql"


@pytest.fixture
def store(store):
    store.write(ROWS.create)
    return store


class Runs:
    """Counts the runs of work functions, and those in a pipeline."""

    def __init__(self) -> None:
        self.total = self.piped = 0

    def count(self, conn: Connection) -> None:
        self.total += 1
        self.piped += PIPELINE in conn.info


def group(store, works):
    """Submit writes that share a transaction; return their futures."""
    reached, opened = threading.Event(), threading.Event()

    def gate(_conn):
        reached.set()
        assert opened.wait(10)

    store.submit(gate)
    assert reached.wait(10)
    futures = [store.submit(work) for work in works]
    opened.set()
    return futures


def put(conn, key, **values):
    INSERT.run(conn, {**dict.fromkeys(ROWS.c.keys()), "id": key, **values})


def add(key, runs=None, **values):
    def work(conn):
        if runs is not None:
            runs.count(conn)
        put(conn, key, **values)
        return key

    return work


def ids(store):
    return store.read(lambda conn: list(conn.execute(select(ROWS.c.id).order_by(ROWS.c.id)).scalars()))


def test_a_group_runs_once_in_a_pipeline_and_returns_its_results_in_order(store):
    runs = Runs()
    keys = [f"{number:03d}" for number in range(200)]
    assert [future.result() for future in group(store, [add(key, runs) for key in keys])] == keys
    assert (runs.total, runs.piped) == (200, 200)
    assert ids(store) == keys


def test_one_write_alone_needs_no_pipeline(store):
    runs = Runs()
    store.write(add("a", runs))
    assert (runs.total, runs.piped) == (1, 0)


def test_writes_that_fail_amid_many_take_no_other_with_them(store):
    def own(conn):
        put(conn, "half")
        raise RuntimeError("mine")

    def absent(conn):
        put(conn, "half too")
        UPDATE.run(conn, {"key": "none", "number": 1}, otherwise=StoreError("no such row"))

    keys = [f"{number:03d}" for number in range(60)]
    works = [add(key) for key in keys]
    works[20:20] = [add("010"), own]
    works[40:40] = [absent, lambda conn: conn.execute(text("SELECT 1 / 0"))]
    futures = group(store, works)
    failed = [future.exception() for future in futures if future.exception() is not None]
    assert [type(error) for error in failed] == [StoreError, RuntimeError, StoreError, StoreError]
    for error, words in zip(
        failed, ("unique constraint", "mine", "no such row", "division by zero"), strict=True
    ):
        assert words in str(error)
    assert [future.result() for future in futures if future.exception() is None] == keys
    assert ids(store) == keys
    # The connection's pipelines work again.
    runs = Runs()
    assert [future.result() for future in group(store, [add("x", runs), add("y", runs)])] == ["x", "y"]
    assert runs.piped == runs.total == 2


def test_a_write_that_reads_sees_those_before_it_and_not_those_after(store):
    def count(conn):
        return conn.execute(select(func.count()).select_from(ROWS)).scalar_one()

    runs = Runs()
    futures = group(store, [add("a", runs), count, add("b", runs), add("c", runs), count, add("d", runs)])
    assert [future.result() for future in futures] == ["a", 1, "b", "c", 3, "d"]
    assert runs.piped == runs.total == 4


def test_writes_happen_in_the_order_in_which_they_were_queued(store):
    def change(number):
        return lambda conn: UPDATE.run(
            conn, {"key": "a", "number": number}, otherwise=StoreError("not inserted yet")
        )

    for future in group(store, [add("a", number=0), *(change(number) for number in range(100))]):
        future.result()
    assert store.read(lambda conn: conn.execute(select(ROWS.c.number)).scalar_one()) == 99


@pytest.mark.parametrize("last", [False, True])
def test_an_error_that_a_write_catches_is_not_committed_as_if_nothing_was(store, last):
    """What failed may be an earlier write's, and its transaction can only be rolled back."""

    def careless(conn):
        with contextlib.suppress(Exception):
            conn.execute(text("SELECT 1"))

    def broken(conn):
        with contextlib.suppress(Exception):
            conn.execute(text("SELECT 1 / 0"))

    def absent(conn):
        put(conn, "half")
        UPDATE.run(conn, {"key": "none", "number": 1}, otherwise=StoreError("no such row"))

    store.write(add("a"))
    for number, (fails, words) in enumerate([(add("a"), "unique constraint"), (absent, "no such row")]):
        rest = [] if last else [add(f"z{number}")]
        first, failed, caught, *others = group(store, [add(f"b{number}"), fails, careless, *rest])
        assert first.result() == f"b{number}"
        with pytest.raises(StoreError, match=words):
            failed.result()
        assert caught.result() is None
        assert [future.result() for future in others] == [f"z{number}"] * len(rest)
    first, lost = group(store, [add("c"), broken])
    assert first.result() == "c"
    with pytest.raises(StoreError, match="aborted"):
        lost.result()
    assert ids(store) == ["a", "b0", "b1", "c", *([] if last else ["z0", "z1"])]


def test_a_connection_that_is_lost_amid_a_group_is_made_anew_and_all_are_stored_once(store):
    pids = []

    def end(conn):
        pids.append(conn.execute(text("SELECT pg_backend_pid()")).scalar_one())
        put(conn, "m")
        if len(pids) == 1:
            with TraceStore.open(store.url) as other:
                other.read(lambda conn: conn.execute(text(f"SELECT pg_terminate_backend({pids[0]}, 5000)")))

    runs = Runs()
    futures = group(store, [add("a", runs), end, *(add(f"z{number:02d}", runs) for number in range(30))])
    for future in futures:
        future.result()
    assert len(set(pids)) == 2
    assert runs.piped > 0
    assert ids(store) == ["a", "m", *(f"z{number:02d}" for number in range(30))]


def test_a_connection_that_is_lost_during_the_commit_is_said_so_and_nothing_runs_again(store):
    """A deferred trigger ends the connection when COMMIT is executed."""

    def prepare(conn):
        conn.exec_driver_sql(
            "CREATE FUNCTION end_connection() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
        )
        conn.exec_driver_sql(
            "CREATE CONSTRAINT TRIGGER end_connection AFTER INSERT ON pipeline_rows DEFERRABLE "
            "INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION end_connection()"
        )

    store.write(prepare)
    runs = Runs()
    for future in group(store, [add("a", runs), add("b", runs)]):
        with pytest.raises(StoreUnavailable, match="check whether the write was stored"):
            future.result()
    assert (runs.total, runs.piped) == (2, 2)
    store.write(lambda conn: conn.exec_driver_sql("DROP TRIGGER end_connection ON pipeline_rows"))
    for future in group(store, [add("c"), add("d")]):
        future.result()
    assert ids(store) == ["c", "d"]


def test_a_group_that_meets_a_lock_is_stored_when_the_lock_is_gone(store):
    store.write(add("a", number=0))
    locked, free = threading.Event(), threading.Event()

    def hold(conn):
        conn.execute(update(ROWS).values(number=1))
        locked.set()
        assert free.wait(20)

    with TraceStore.open(store.url) as other:
        holding = other.submit(hold)
        assert locked.wait(10)
        runs = Runs()
        change = lambda conn: UPDATE.run(conn, {"key": "a", "number": 2})  # noqa: E731
        futures = group(store, [add("b", runs), change])
        deadline = time.monotonic() + 10
        while runs.total < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        free.set()
        for future in (holding, *futures):
            future.result(20)
    assert (runs.total, runs.piped) == (2, 1)
    assert store.read(
        lambda conn: conn.execute(select(ROWS.c.id, ROWS.c.number).order_by(ROWS.c.id)).all()
    ) == [
        ("a", 2),
        ("b", None),
    ]


def test_a_group_larger_than_the_buffers_of_its_socket_is_stored(store):
    blob = bytes(range(256)) * 1_000
    futures = group(store, [add(f"{number:03d}", blob=blob) for number in range(120)])
    assert len([future.result() for future in futures]) == 120
    sizes = select(func.count(), func.sum(func.length(ROWS.c.blob)))
    assert store.read(lambda conn: tuple(conn.execute(sizes).one())) == (120, 120 * len(blob))


GIVEN = {
    "number": -(2**40),
    "real": 0.1,
    "yes": True,
    "blob": b"\x00\xff\\x",
    "json": {"é": [1, None, "\U0001f600"]},
}


@pytest.mark.parametrize(
    "values",
    [
        GIVEN,
        dict.fromkeys(GIVEN),
        {"number": 0, "real": float("inf"), "yes": False, "blob": b"", "json": []},
        {"real": float("nan"), "json": "it's"},
        {"real": 1e-300, "json": 0.1},
    ],
)
def test_values_are_stored_as_a_write_alone_stores_them(store, values):
    store.write(add("alone\0", **values))
    runs = Runs()
    for future in group(store, [add("piped\0", runs, **values), add("other", runs)]):
        future.result()
    assert runs.piped == 2
    columns = "number, CAST(real AS VARCHAR), yes, blob, CAST(json AS VARCHAR)"
    query = text(f"SELECT {columns} FROM pipeline_rows WHERE id = :id")
    alone, piped = (
        store.read(lambda conn, key=key: conn.execute(query, {"id": key}).one())
        for key in ("alone\ufffd", "piped\ufffd")
    )
    assert alone == piped


def test_a_value_that_a_pipeline_cannot_send_is_stored_without_it(store):
    class Name(str):
        __slots__ = ()

    runs = Runs()
    for future in group(store, [add(Name("a"), runs), add("b", runs)]):
        future.result()
    assert (runs.total, runs.piped) == (3, 1)
    assert ids(store) == ["a", "b"]
