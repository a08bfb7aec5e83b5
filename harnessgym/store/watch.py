"""Waiting for writes of other processes: by notification if the database can notify, otherwise by polling.

A watch covers what work depends on: the states of runs, groups, rollouts, policy versions and workers, and
leases that are released. A change that happens between two waits, or between the start of the watch and the
first wait, ends the next wait at once. The caller must look at the store after each wait, because a wait may
end without a change. It always ends after a while, since the expiry of a lease notifies nobody.
"""

import asyncio
import time
from typing import Protocol, Self

CHANNEL = "harnessgym_changed"
"""Channel that PostgreSQL's triggers notify of changes."""


class StoreWatch(Protocol):
    """A watch for changes, used by one waiter at a time; a context manager."""

    def wait(self) -> None:
        """Wait until something may have changed."""
        ...

    async def changed(self) -> None:
        """Like `wait`, without blocking the event loop. May be cancelled."""
        ...

    def close(self) -> None:
        """Stop watching."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...


class Polling:
    """A watch for databases that cannot notify: every wait ends after `poll_s`."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s

    # It does not look at the database itself: every caller reads what it waits for after the wait anyway.
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
