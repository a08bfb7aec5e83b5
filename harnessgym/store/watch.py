"""Waiting for what other processes write: told by the database where it can tell, by looking again where it
cannot.

What is watched is what work depends on: the state of runs, groups, rollouts, policy versions and workers,
leases given back. A change that came after the last wait, or before the first, ends the next one at once.
Whoever waits must then look: a wait may also end for nothing, and does after a while, for leases end without
a word.
"""

import asyncio
import time
from typing import Protocol, Self

CHANNEL = "harnessgym_changed"
"""Where PostgreSQL's triggers tell of changes."""


class StoreWatch(Protocol):
    """One waiter's view of the changes; a context manager. One wait at a time."""

    def wait(self) -> None:
        """Wait until something may have changed."""
        ...

    async def changed(self) -> None:
        """The same, without blocking the event loop. May be cancelled."""
        ...

    def close(self) -> None:
        """Watch no more."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


class Polling:
    """Looking again after a while."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s

    def wait(self) -> None:
        """See `StoreWatch`."""
        time.sleep(self._poll_s)

    async def changed(self) -> None:
        """See `StoreWatch`."""
        await asyncio.sleep(self._poll_s)

    def close(self) -> None:
        """See `StoreWatch`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
