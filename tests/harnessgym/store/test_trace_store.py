"""What a write promises: alone in its failure, durable when it returns, refused in a forked child."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, insert, select, text

from harnessgym.errors import StoreError, StoreUnavailable
from harnessgym.store import TraceStore
from harnessgym.store.tables import leases

sqlite_only = pytest.mark.parametrize("kind", ["sqlite"], indirect=False)


def add(name: str):
    def work(conn: Connection) -> str:
        conn.execute(insert(leases).values(resource=name, holder="h", expires=0.0))
        return name

    return work


def names(store: TraceStore) -> list[str]:
    return store.read(
        lambda conn: list(conn.execute(select(leases.c.resource).order_by(leases.c.resource)).scalars())
    )


def committed(store: TraceStore) -> list[str]:
    """What another connection sees, without the store."""
    engine = create_engine(store.url)
    with engine.connect() as conn:
        found = [row[0] for row in conn.execute(text("SELECT resource FROM leases ORDER BY resource"))]
    engine.dispose()
    return found


class Gate:
    """A write that keeps the writer busy until it is opened."""

    def __init__(self, store: TraceStore) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.future: Future[None] = store.submit(self.work)

    def work(self, conn: Connection) -> None:
        self.reached.set()
        assert self.opened.wait(10)


def test_a_write_returns_what_its_function_returned(store):
    assert store.write(add("a")) == "a"
    assert names(store) == ["a"]


def test_waiting_writes_share_a_transaction_and_one_that_fails_takes_no_other_with_it(store):
    gate = Gate(store)
    assert gate.reached.wait(10)
    first, double, bad, last = (
        store.submit(add("a")),
        store.submit(add("a")),
        store.submit(lambda conn: 1 / 0),
        store.submit(add("b")),
    )
    gate.opened.set()
    assert (first.result(), last.result()) == ("a", "b")
    with pytest.raises(StoreError, match=r"refused: .*(?i:unique constraint).*leases"):
        double.result()
    with pytest.raises(ZeroDivisionError):
        bad.result()
    assert committed(store) == ["a", "b"]


@pytest.mark.parametrize("waker", ["another write", "wake", "close"])
def test_a_write_that_wakes_nobody_waits_for_one_that_does(url, waker):
    order = []
    with TraceStore.create(url) as store:
        waiting = [store.submit(lambda conn, n=n: order.append(n), wake=False) for n in (1, 2)]
        time.sleep(0.1)
        assert order == []
        assert not any(future.done() for future in waiting)
        if waker == "another write":
            store.write(lambda conn: order.append(3))
        elif waker == "wake":
            store.wake()
            waiting[-1].result(5.0)
    assert order == [1, 2, 3] if waker == "another write" else [1, 2]
    assert all(future.done() for future in waiting)


def test_a_failed_write_leaves_nothing_of_itself(store):
    def half(conn: Connection) -> None:
        add("a")(conn)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        store.write(half)
    assert names(store) == []


def test_no_result_is_seen_before_its_commit(store):
    hold = Gate(store)
    assert hold.reached.wait(10)
    first = store.submit(add("a"))
    gate = Gate(store)
    hold.opened.set()
    assert gate.reached.wait(10)
    with pytest.raises(TimeoutError):
        first.result(timeout=0.2)
    assert committed(store) == []
    gate.opened.set()
    assert first.result() == "a"
    assert committed(store) == ["a"]


def test_a_caller_that_is_cancelled_does_not_take_its_write_back(store):
    async def cancelled() -> None:
        gate = Gate(store)
        waiting = asyncio.create_task(store.awrite(add("a")))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.opened.set()
        assert await store.awrite(add("b")) == "b"

    asyncio.run(cancelled())
    assert committed(store) == ["a", "b"]


def test_awrite_does_not_block_the_loop(store):
    async def both() -> list[str]:
        gate = Gate(store)
        writes = [asyncio.ensure_future(store.awrite(add(name))) for name in "abc"]
        await asyncio.sleep(0.01)
        gate.opened.set()
        return await asyncio.gather(*writes)

    assert asyncio.run(both()) == ["a", "b", "c"]


def test_a_read_sees_one_state(store):
    def twice(conn: Connection) -> tuple[int, int]:
        count = text("SELECT count(*) FROM leases")
        before = conn.execute(count).scalar_one()
        writer = threading.Thread(target=lambda: store.write(add("a")))
        writer.start()
        writer.join()
        return before, conn.execute(count).scalar_one()

    assert store.read(twice) == (0, 0)
    assert names(store) == ["a"]


def test_more_threads_than_pooled_connections_read_at_once(store):
    together = threading.Barrier(24)
    found: list[list[str]] = []

    def read() -> None:
        found.append(store.read(lambda conn: (together.wait(20) and names(store)) or []))

    threads = [threading.Thread(target=read) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[]] * 24


def test_a_bad_read_is_a_store_error(store):
    with pytest.raises(StoreError, match="absent"):
        store.read(lambda conn: conn.execute(text("SELECT * FROM absent")))


def test_close_commits_what_waits_and_may_be_repeated(url):
    store = TraceStore.open(url)
    gate = Gate(store)
    futures = [store.submit(add(f"{number:03d}")) for number in range(300)]
    gate.opened.set()
    store.close()
    store.close()
    assert all(future.done() for future in futures)
    assert len(committed(store)) == 300
    for use in (store.write, store.read, store.submit):
        with pytest.raises(StoreError, match="is closed"):
            use(add("x"))


def test_writes_racing_with_close_are_stored_or_refused(url):
    store = TraceStore.open(url)
    kept: list[str] = []

    def write(thread: int) -> None:
        for number in range(10_000):
            try:
                kept.append(store.write(add(f"{thread}-{number}")))
            except StoreError:
                return

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(kept) < 50:
        pass
    store.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert committed(store) == sorted(kept)


@pytest.mark.parametrize("url", ["mysql://localhost/x", "nonsense", "postgresql+asyncpg://localhost/x"])
def test_another_database_is_refused(url):
    with pytest.raises(StoreError, match=r"postgresql\+psycopg://"):
        TraceStore(url)


def test_a_file_that_is_no_database_is_said_so(tmp_path):
    path = tmp_path / "traces.db"
    path.write_text("hello " * 1000)
    for opening in (TraceStore.create, TraceStore.open):
        with pytest.raises(StoreError, match="not a trace database"):
            opening(f"sqlite:///{path}")


def test_a_folder_that_cannot_be_written_is_said_so(tmp_path):
    with pytest.raises(StoreError, match="cannot be opened for writing"):
        TraceStore.create("sqlite:////proc/traces.db")


@sqlite_only
def test_full_durability_is_a_setting(url):
    with TraceStore.open(url, synchronous="FULL") as store:
        assert store.read(lambda conn: conn.execute(text("PRAGMA synchronous")).scalar()) == 2
    with TraceStore.open(url) as store:
        assert store.read(lambda conn: conn.execute(text("PRAGMA synchronous")).scalar()) == 1
        assert store.read(lambda conn: conn.execute(text("PRAGMA journal_mode")).scalar()) == "wal"


WRITER = """
import sys, threading
from sqlalchemy import insert
from harnessgym.store import TraceStore
from harnessgym.store.tables import leases

store, said = TraceStore.open(sys.argv[1]), threading.Lock()

def work(thread):
    for number in range(1_000_000):
        name = f"{thread}-{number}"
        store.write(lambda conn: conn.execute(insert(leases).values(resource=name, holder="h", expires=0.0)))
        with said:
            print(name, flush=True)

for thread in range(4):
    threading.Thread(target=work, args=(thread,)).start()
"""


@pytest.mark.parametrize("lines", [1, 40, 400])
def test_a_killed_process_loses_no_write_that_returned(kind, url, store, lines):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True)
    said = [writer.stdout.readline() for _ in range(lines)]
    os.kill(writer.pid, signal.SIGKILL)
    said += writer.stdout.readlines()
    writer.stdout.close()
    assert writer.wait() == -signal.SIGKILL
    whole = {line.strip() for line in said if line.endswith("\n")}
    assert len(whole) >= lines
    assert whole <= set(names(store))
    if kind == "sqlite":
        assert store.read(lambda conn: conn.execute(text("PRAGMA integrity_check")).scalar()) == "ok"
    assert store.write(add("after")) == "after"


FORKER = """
import os, sys
from harnessgym.errors import StoreError, StoreUnavailable
from harnessgym.store import TraceStore

store = TraceStore.open(sys.argv[1])
store.read(lambda conn: None)
pid = os.fork()
if pid == 0:
    refused = 0
    for use in (store.write, store.read, store.submit):
        try:
            use(lambda conn: None)
        except StoreError as error:
            refused += "cannot be used after a fork" in str(error)
    store.close()
    os._exit(refused)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
store.write(lambda conn: None)
store.close()
print(code)
"""


def test_a_forked_child_is_refused_and_harms_nothing(url, store):
    done = subprocess.run(
        [sys.executable, "-c", FORKER, url], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "3"


def big(size: int):
    def work(conn: Connection) -> None:
        conn.execute(insert(leases).values(resource=f"big-{size}", holder="x" * size, expires=0.0))

    return work


@sqlite_only
def test_a_full_database_fails_clearly_and_goes_on(store):
    pages = store.write(lambda conn: conn.exec_driver_sql("PRAGMA page_count").scalar())
    store.write(lambda conn: conn.exec_driver_sql(f"PRAGMA max_page_count = {pages + 4}").scalar())
    gate = Gate(store)
    assert gate.reached.wait(10)
    group = [store.submit(add("before")), store.submit(big(1_000_000)), store.submit(add("behind"))]
    gate.opened.set()
    with pytest.raises(StoreError, match="is full"):
        group[1].result()
    outcomes = [future.exception() is None for future in group]
    assert committed(store) == [
        name for name, stored in zip(("before", "", "behind"), outcomes, strict=True) if stored
    ]
    store.write(lambda conn: conn.exec_driver_sql("PRAGMA max_page_count = 1000000").scalar())
    store.write(big(1_000_000))
    assert "big-1000000" in names(store)


def test_a_full_disk_fails_clearly_loses_nothing_and_goes_on_when_there_is_space(small_disk: Path):
    with TraceStore.create(f"sqlite:///{small_disk / 'traces.db'}") as store:
        kept: list[str] = []
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * 500_000)

        def fill() -> None:
            for number in range(10_000):
                kept.append(store.write(add(f"{number:05d}" + "x" * 4_000)))  # noqa: PERF401 what was kept so far counts

        with pytest.raises(StoreUnavailable, match=r"is full .* Free space and go on"):
            fill()
        assert committed(store) == kept
        for _ in range(3):
            with pytest.raises(StoreError, match="is full"):
                store.write(big(600_000))
        ballast.unlink()
        store.write(add("z"))
        assert committed(store) == [*kept, "z"]
        assert store.read(lambda conn: conn.execute(text("PRAGMA integrity_check")).scalar()) == "ok"


def test_a_disk_that_fills_up_within_a_group_stores_exactly_what_it_said(small_disk: Path):
    with TraceStore.create(f"sqlite:///{small_disk / 'traces.db'}") as store:
        gate = Gate(store)
        assert gate.reached.wait(10)
        futures = [store.submit(add(f"{number:05d}" + "x" * 20_000)) for number in range(200)]
        gate.opened.set()
        results = [future.result() for future in futures if future.exception() is None]
        assert any(isinstance(future.exception(), StoreError) for future in futures)
        assert committed(store) == results


@sqlite_only
def test_a_locked_database_is_waited_for_as_long_as_its_url_says(url):
    path = url.removeprefix("sqlite:///")
    with TraceStore.open(f"{url}?timeout=0.2") as store, contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with pytest.raises(
            StoreUnavailable, match=r"stayed locked for 0\.2 s\. End the process that holds it"
        ):
            store.write(add("a"))
        assert time.monotonic() - began < 5
        other.rollback()
        store.write(add("b"))
        assert names(store) == ["b"]


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan", "inf"])
def test_a_url_that_says_no_time_to_wait_is_refused(given):
    for url in (
        f"sqlite:///traces.db?timeout={given}",
        f"postgresql+psycopg:///traces?connect_timeout={given}",
    ):
        with pytest.raises(
            StoreError, match=f"timeout={given} in .* is not a number of seconds: write for example"
        ):
            TraceStore(url)
