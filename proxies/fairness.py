"""Shares the proxy among its sessions, so that none of them waits for another's work."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class Turns:
    """Lets each session begin one request in each turn of the event loop, however many it has sent."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Sessions that have begun a request in this turn, and their requests that wait for later ones."""

    async def take(self, owner: str) -> None:
        """Wait for a turn."""
        waiting = self._waiting.get(owner)
        loop = asyncio.get_running_loop()
        if waiting is None:
            self._waiting[owner] = deque()
            loop.call_soon(self._next, owner)
            return
        turn = loop.create_future()
        waiting.append(turn)
        await turn

    def _next(self, owner: str) -> None:
        waiting = self._waiting[owner]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next, owner)
                return
        del self._waiting[owner]


def _less(counts: Counter[str], owner: str) -> None:
    counts[owner] -= 1
    if not counts[owner]:
        del counts[owner]


_HELD_S = 1.0
_HELD_OF_ONE = 256
_HELD = 1_024


class HeldRefusals:
    """Requests that are told only after a while that there is no room: a client that tries again without
    pause would keep the event loop busy with refusing it.
    """

    def __init__(self, hold_s: float = _HELD_S, of_one: int = _HELD_OF_ONE, of_all: int = _HELD) -> None:
        """`hold_s` is in seconds; `of_one` and `of_all` are how many one owner, and all, may have held."""
        self._hold_s = hold_s
        self._of_one = of_one
        self._of_all = of_all
        self._held: Counter[str] = Counter()
        self._due: dict[str, float] = {}
        """Loop time at which an owner's latest refusal is answered."""

    async def wait(self, owner: str) -> bool:
        """Wait for the time to answer; False, at once, if too many are held."""
        if self._held[owner] >= self._of_one or self._held.total() >= self._of_all:
            return False
        now = asyncio.get_running_loop().time()
        # Those that came at once are not answered at once: their clients would be back at once, too.
        due = max(now + self._hold_s, self._due.get(owner, 0.0) + self._hold_s / self._of_one)
        self._due[owner] = due
        self._held[owner] += 1
        try:
            await asyncio.sleep(due - now)
        finally:
            _less(self._held, owner)
            if not self._held[owner]:
                del self._due[owner]
        return True


@dataclass(slots=True)
class _Work:
    run: Callable[[], Any]
    done: "asyncio.Future[Any]"


class FairThreads:
    """Runs work on a few threads, for each owner one piece at a time. Owners take turns."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="proxy-work")
        self._free = threads
        self._queues: OrderedDict[str, deque[_Work]] = OrderedDict()
        """Work that has not begun, by owner. The owner that waits longest for a turn comes first."""
        self._busy: set[str] = set()

    async def run(self, owner: str, work: Callable[[], T]) -> T:
        """Run `work` on a thread, when it is its owner's turn."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(owner, deque()).append(_Work(work, done))
        self._begin()
        return await done

    def close(self) -> None:
        """End the threads when they have finished what they do."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self) -> None:
        while self._free:
            owner = next((owner for owner in self._queues if owner not in self._busy), None)
            if owner is None:
                return
            queue = self._queues.pop(owner)
            work = queue.popleft()
            if queue:
                self._queues[owner] = queue
            # Its client has left.
            if work.done.done():
                continue
            self._free -= 1
            self._busy.add(owner)
            running = asyncio.get_running_loop().run_in_executor(self._pool, work.run)
            running.add_done_callback(partial(self._end, owner, work))

    def _end(self, owner: str, work: _Work, result: "asyncio.Future[Any]") -> None:
        self._free += 1
        self._busy.discard(owner)
        if owner in self._queues:
            self._queues.move_to_end(owner)
        if work.done.done():
            pass
        elif result.cancelled():  # the threads were closed before it began
            work.done.cancel()
        elif (error := result.exception()) is None:
            work.done.set_result(result.result())
        else:
            work.done.set_exception(error)
        self._begin()
