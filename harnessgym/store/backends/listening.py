"""Watching for changes with PostgreSQL's LISTEN and NOTIFY.

Triggers (`store/views.py`) notify the channel of the changes that processes wait for (`store/watch.py`).
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Self

import psycopg
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from harnessgym.store.backend import CHANNEL

_GATHER_S = 0.01
"""How long to collect further notifications after the first, so that one look at the store covers a burst."""


class Listening:
    """A `StoreWatch` on a connection of its own. While the server is away it falls back to polling."""

    def __init__(self, engine: Engine, poll_s: float, longest_s: float) -> None:
        self._engine = engine
        self._poll_s = poll_s
        self._longest_s = longest_s
        self._driver: psycopg.Connection[tuple[object, ...]] | None = None
        self._connect()

    def wait(self) -> None:
        """See `StoreWatch`."""
        driver = self._driver
        if driver is None:
            time.sleep(self._poll_s)
            self._connect()
            return
        with self._forgets_lost():
            if any(True for _ in driver.notifies(timeout=self._longest_s, stop_after=1)):
                time.sleep(_GATHER_S)
                self._drain(driver)

    async def changed(self) -> None:
        """See `StoreWatch`."""
        driver = self._driver
        if driver is None:
            await asyncio.sleep(self._poll_s)
            await asyncio.to_thread(self._connect)
            return
        with self._forgets_lost():
            loop = asyncio.get_running_loop()
            heard = asyncio.Event()
            # psycopg's `notifies` would block the event loop. So the loop waits until the socket is readable,
            # and the notifications are read only then.
            socket = driver.fileno()
            loop.add_reader(socket, heard.set)
            try:
                async with asyncio.timeout(self._longest_s):
                    await heard.wait()
                # Data stays unread during the pause below: a registered reader would fire in a busy loop.
                loop.remove_reader(socket)
                await asyncio.sleep(_GATHER_S)
                self._drain(driver)
            except TimeoutError:
                pass
            finally:
                loop.remove_reader(socket)

    def close(self) -> None:
        """See `StoreWatch`."""
        driver = self._driver
        self._driver = None
        if driver is not None:
            driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _connect(self) -> None:
        """Open a connection configured like the engine's others, and detach it from the pool."""
        try:
            made = self._engine.raw_connection()
            driver = made.driver_connection
            made.detach()
            assert isinstance(driver, psycopg.Connection)
            self._driver = driver
            driver.execute(f"LISTEN {CHANNEL}")
        except (DBAPIError, psycopg.Error):
            # Not reported here: whoever waits reads the store next, and that read raises the explained error.
            self.close()

    @contextlib.contextmanager
    def _forgets_lost(self) -> Iterator[None]:
        """End the wait when the connection is lost: notifications may have been missed."""
        try:
            yield
        except psycopg.Error:
            self.close()

    @staticmethod
    def _drain(driver: "psycopg.Connection[tuple[object, ...]]") -> None:
        for _ in driver.notifies(timeout=0):
            pass
