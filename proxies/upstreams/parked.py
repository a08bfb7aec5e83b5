"""Calls that wait for an answer from outside: a gymnasium environment's agent, a person or a test.

Each call of a session with the upstream `parked` waits here until it is answered through the control routes,
its client has been gone for the grace time, its session is sealed, or it times out. Several calls may wait at
once.
"""

import asyncio
from collections import deque

from proxies.dialect import Problem
from proxies.upstream import TextAnswer, TextCall, TextRefusal

_REMEMBERED = 4_096
"""Number of answered calls that are remembered, so that sending an answer twice is harmless."""


class ParkedUpstream:
    """Waiting calls, oldest first."""

    version = 0

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[TextCall, asyncio.Future[TextAnswer]]] = {}
        self._answered: deque[str] = deque(maxlen=_REMEMBERED)
        self._news = asyncio.Event()

    async def complete(self, call: TextCall) -> TextAnswer:
        """Wait for the answer. Raises `TextRefusal` after `call.timeout_s` seconds."""
        answer: asyncio.Future[TextAnswer] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = call, answer
        self.wake()
        try:
            async with asyncio.timeout(call.timeout_s):
                return await answer
        except TimeoutError:
            detail = f"Nobody answered the parked call {call.id} within {call.timeout_s:g} s."
            raise TextRefusal(Problem("upstream", detail)) from None
        finally:
            del self._waiting[call.id]

    def waiting(self, session_id: str) -> list[TextCall]:
        """The session's calls that wait for an answer, oldest first."""
        found = [
            call
            for call, answer in self._waiting.values()
            if call.session_id == session_id and not answer.done()
        ]
        return sorted(found, key=lambda call: call.ordinal)

    def answer(self, session_id: str, call_id: str, answer: TextAnswer) -> bool:
        """Answer a call. Returns whether there is such a call; answering it again changes nothing.

        Raises `UpstreamError` for an answer that cannot be written in the policy's language; the call keeps
        waiting.
        """
        found = self._waiting.get(call_id)
        if found is None or found[0].session_id != session_id or found[1].done():
            return call_id in self._answered
        # Tokenised here to find out whether it can be: the caller gets the error and can answer again.
        answer.ids(found[0].language)
        found[1].set_result(answer)
        self._answered.append(call_id)
        return True

    async def news(self, timeout_s: float) -> None:
        """Wait for a new call or a `wake`, for at most `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            pass

    def wake(self) -> None:
        """Wake everyone who waits in `news`."""
        # Setting wakes the present waiters; the new event makes later ones wait for the next news.
        self._news.set()
        self._news = asyncio.Event()

    async def healthy(self) -> bool:
        """Always true."""
        return True

    def close(self) -> None:
        """Does nothing: there are no connections."""
