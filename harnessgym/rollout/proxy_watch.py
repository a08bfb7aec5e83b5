"""Whether the proxy was away while a harness ran: it was started again, or it did not answer.

A harness whose calls were cut off, or were read by nobody, may fail or run out of time for that. It is not
its own doing, and the record cannot show it: a call that a stopped proxy has not read yet is recorded
nowhere. So a node asks the proxy how it is, once a second, as long as it has rollouts.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from harnessgym.proxy_client import ControlClient

_EVERY_S = 1.0
_AWAY_S = 3.0
"""A proxy that answers so much later than it should was away. On a busy machine it may be late by a
second."""

_KEPT = 256


@dataclass(frozen=True, slots=True)
class Absence:
    """A time in which the proxy was away, between two of its answers."""

    began: float
    ended: float
    replaced: bool
    """Whether another process answered afterwards."""

    def __str__(self) -> str:
        if self.replaced:
            return "The proxy was started again while the harness ran"
        return f"The proxy did not answer for {self.ended - self.began:.1f} s while the harness ran, or the node was stopped"


class ProxyWatch:
    """Asks the proxy, and remembers when it was away. All times are monotonic.

    ```python
    async with watch.watching():
        ...
        if absence := await watch.absence(began, ended):
            ...
    ```
    """

    def __init__(self, control: ControlClient) -> None:
        self._control = control
        self._watchers = 0
        self._asking: asyncio.Task[None] | None = None
        self._answered = 0.0
        """When the proxy answered last."""
        self._process: str | None = None
        """What it called itself then; None before its first answer."""
        self._absences: deque[Absence] = deque(maxlen=_KEPT)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Ask for the time of a block, which may be in several tasks at once."""
        self._watchers += 1
        if self._asking is None:
            self._answered = time.monotonic()
            self._process = None
            self._asking = asyncio.create_task(self._keep_asking())
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                asking = self._asking
                self._asking = None
                asking.cancel()
                await asyncio.wait([asking])
                self._absences.clear()

    async def absence(self, began: float, ended: float) -> Absence | None:
        """When the proxy was away between two times, the last of several; None if it was there."""
        await self._ask()
        overlapping = [each for each in self._absences if each.began < ended and each.ended > began]
        return overlapping[-1] if overlapping else None

    async def _keep_asking(self) -> None:
        while True:
            await self._ask()
            await asyncio.sleep(_EVERY_S)

    async def _ask(self) -> None:
        """Ask once. If there is no answer, the next one ends the absence."""
        process = await self._control.process(timeout_s=_AWAY_S)
        if process is None:
            return
        now = time.monotonic()
        replaced = self._process not in (None, process)
        if replaced or now - self._answered > _EVERY_S + _AWAY_S:
            self._absences.append(Absence(self._answered, now, replaced))
        self._answered = now
        self._process = process
