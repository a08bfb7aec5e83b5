"""Calls that wait for somebody outside: a gymnasium environment's agent, a person, a test.

Each call of a session that names the upstream `parked` waits here until it is answered through the control
routes, its client has been gone for the grace time, its session is sealed, or its time is over. Several may
wait at once.
"""

import asyncio
from collections import deque

from proxies.dialect import Problem
from proxies.upstream import TextAnswer, TextCall, TextRefusal

_REMEMBERED = 4_096
"""Answered calls that are remembered, so that an answer sent twice does no harm."""


class ParkedUpstream:
    """Waiting calls, oldest first."""

    version = 0

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[TextCall, asyncio.Future[TextAnswer]]] = {}
        self._answered: deque[str] = deque(maxlen=_REMEMBERED)
        self._news = asyncio.Event()

    async def complete(self, call: TextCall) -> TextAnswer:
        """Wait for the answer. Raises `TextRefusal` when the call's time is over."""
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
        """The calls of a session that wait for an answer, oldest first."""
        found = [
            call
            for call, answer in self._waiting.values()
            if call.session_id == session_id and not answer.done()
        ]
        return sorted(found, key=lambda call: call.ordinal)

    def answer(self, session_id: str, call_id: str, answer: TextAnswer) -> bool:
        """Answer a call; sent again, the same answer changes nothing. Returns whether there is such a call.

        Raises `UpstreamError` for an answer that cannot be written in the policy's language; the call then
        goes on waiting.
        """
        found = self._waiting.get(call_id)
        if found is None or found[0].session_id != session_id or found[1].done():
            return call_id in self._answered
        answer.ids(found[0].language)
        found[1].set_result(answer)
        self._answered.append(call_id)
        return True

    async def news(self, timeout_s: float) -> None:
        """Wait until a call has come or somebody is to look again, but no longer than that."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            pass

    def wake(self) -> None:
        """Let everyone who waits for news look again."""
        self._news.set()
        self._news = asyncio.Event()

    async def healthy(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Nothing is open."""
