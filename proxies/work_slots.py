"""Bounds how much of one session's work is under way, so that no session's work waits long for another's.

Calls of all sessions share the event loop, the interpreter's lock and the store's writer, each of which takes
work in the order in which it comes. A session with hundreds of calls must not fill these queues.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

_ALONE, _BESIDE = 16, 2


@dataclass(slots=True, eq=False)
class _Owner:
    name: str
    requests: int = 0
    """Open requests."""
    calls: int = 0
    """Calls in flight, which may have lost their requests."""
    running: int = 0
    """Pieces of work under way."""
    intents: "deque[Future[None]]" = field(default_factory=deque)
    """Queued intents of calls, oldest first, that were not committed when last looked at."""
    starts: "deque[asyncio.Future[None]]" = field(default_factory=deque)
    """Starts of calls that wait for a slot."""
    waiting: "deque[asyncio.Future[None]]" = field(default_factory=deque)
    """Other pieces that wait for a slot."""
    watched: bool = False
    """Whether the commit of the oldest intent admits a start."""

    def within(self, most: int) -> bool:
        """Whether there can be no more pieces than slots."""
        return self.requests <= most and self.calls <= most

    def free(self, most: int, *, start: bool) -> bool:
        """Whether a piece may begin."""
        # An intent counts until the store has it: otherwise calls that begin faster than the store takes
        # them make everybody's commits wait behind their intents.
        while self.intents and self.intents[0].done():
            self.intents.popleft()
        return self.running + (len(self.intents) if start else 0) < most


class WorkSlots:
    """Slots for pieces of work: what the proxy does for a call between two waits for a client or an engine.

    With all slots of a session used the proxy is not idle, so a session that is alone loses no throughput.
    """

    def __init__(
        self, alone: int = _ALONE, beside: int = _BESIDE, hurry: Callable[[], None] = lambda: None
    ) -> None:
        """How many slots an owner has, alone and while others have requests open. `hurry` is called when a
        start waits for the commit of an intent, so that it is not put off.
        """
        self._alone = alone
        self._beside = beside
        self._hurry = hurry
        self._owners: dict[str, _Owner] = {}
        self._asking = 0
        """How many owners have requests open."""

    @contextmanager
    def request(self, name: str) -> Iterator[None]:
        """Count an open request."""
        owner = self._owner(name)
        owner.requests += 1
        self._asking += owner.requests == 1
        try:
            yield
        finally:
            owner.requests -= 1
            self._asking -= not owner.requests
            self._forget(owner)

    def call_begun(self, name: str, intent: "Future[None]") -> None:
        """Count a call in flight and its queued intent."""
        owner = self._owner(name)
        owner.calls += 1
        if not intent.done():
            owner.intents.append(intent)

    def call_ended(self, name: str) -> None:
        """End what `call_begun` began."""
        owner = self._owner(name)
        owner.calls -= 1
        self._forget(owner)

    def piece(self, name: str, *, start: bool = False) -> "_Piece":
        """`async with slots.piece(owner):` does a piece of work when there is a slot for it. In it, neither
        another piece may begin nor a client or an engine be waited for. `start` if it begins calls.
        """
        return _Piece(self, self._owner(name), start)

    async def begin(self, owner: _Owner, *, start: bool) -> None:
        """Begin a piece when there is a slot for it."""
        queue = owner.starts if start else owner.waiting
        if owner.within(self._most) or (not queue and owner.free(self._most, start=start)):
            owner.running += 1
            return
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._watch(owner)
        try:
            await turn
        except asyncio.CancelledError:
            # It may have been given its slot in the same moment.
            if turn.done() and not turn.cancelled():
                self._end(owner)
            raise

    def end(self, owner: _Owner) -> None:
        """End a piece."""
        if owner.within(self._most) and not (owner.waiting or owner.starts):
            self._end(owner)
        else:
            # What the piece woke, such as the writing of what was sampled, runs in the next turn of the loop,
            # and is a part of it.
            asyncio.get_running_loop().call_soon(self._end, owner)

    @property
    def _most(self) -> int:
        return self._alone if self._asking < 2 else self._beside

    def _owner(self, name: str) -> _Owner:
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = _Owner(name)
        return owner

    def _forget(self, owner: _Owner) -> None:
        if not (owner.requests or owner.calls or owner.running or owner.waiting or owner.starts):
            self._owners.pop(owner.name, None)

    def _end(self, owner: _Owner) -> None:
        owner.running -= 1
        self._admit(owner)
        self._forget(owner)

    def _admit(self, owner: _Owner) -> None:
        """Begin what waits, as far as there are slots; calls that have begun come first."""
        most = self._most
        for queue, start in ((owner.waiting, False), (owner.starts, True)):
            while queue and owner.free(most, start=start):
                turn = queue.popleft()
                if not turn.done():
                    owner.running += 1
                    turn.set_result(None)
        self._watch(owner)

    def _watch(self, owner: _Owner) -> None:
        """See to it that the commit of an intent admits a start."""
        if owner.watched or not owner.starts or not owner.intents:
            return
        owner.watched = True
        loop = asyncio.get_running_loop()

        def committed(_: "Future[None]") -> None:  # on the writer's thread
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._committed, owner)

        owner.intents[0].add_done_callback(committed)
        self._hurry()

    def _committed(self, owner: _Owner) -> None:
        owner.watched = False
        self._admit(owner)


@dataclass(slots=True)
class _Piece:
    slots: WorkSlots
    owner: _Owner
    start: bool

    async def __aenter__(self) -> None:
        await self.slots.begin(self.owner, start=self.start)

    async def __aexit__(self, *_: object) -> None:
        self.slots.end(self.owner)
