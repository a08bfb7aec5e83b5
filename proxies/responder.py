"""One client's view of a call: whole or streamed, kept alive while it waits, and never ahead of the commit.

Text and reasoning are shown as they come. An event after which a client may act, and all that follow it, wait until the call is
committed; so does every byte of an answer that is not streamed.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

from proxies.call import Call
from proxies.connection import Connection, Disconnected
from proxies.dialect import Delta, Dialect, Event, Problem
from proxies.recorder import Recorder

_STREAM_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


class _Failed(Exception):
    """The call this responder listens to has failed."""


class Responder:
    """Gives one connection the answer of one call."""

    def __init__(self, connection: Connection, dialect: Dialect, call: Call, recorder: Recorder, keepalive_s: float) -> None:
        self._connection, self._dialect, self._call = connection, dialect, call
        self._recorder, self._keepalive_s = recorder, keepalive_s
        self._listener: asyncio.Event
        self._buffer: list[bytes] = []
        self._acts = False
        """Whether the buffer holds an event on which a client can act."""
        self._started = False
        self._written_at = time.monotonic()

    async def run(self, grace_s: float) -> None:
        """Respond. If the client goes away first, the call is left to its grace time."""
        call, connection = self._call, self._connection
        self._listener = call.join()
        connection.watch(self._listener)
        try:
            await (self._stream() if call.request.stream else self._whole())
        except Disconnected:
            if call.answer is not None and not call.acted:
                self._recorder.note(call.id, "undelivered")
        finally:
            await connection.release()
            call.leave(self._listener, grace_s)

    async def _whole(self) -> None:
        call = self._call
        await self._until_settled()
        if call.answer is None:
            await self._refuse()
            return
        body = self._dialect.render(call.answer)
        await self._connection.respond(200, {"content-type": "application/json"}, body)
        self._delivered()

    async def _stream(self) -> None:
        call = self._call
        request, prompt_tokens = call.request, call.prompt_len
        try:
            await self._begun()
            async with aclosing(self._dialect.stream(self._deltas(), call.stamp, request, prompt_tokens)) as events:  # type: ignore[type-var]
                async for event in events:
                    await self._take(event)
        except _Failed:
            if not self._started:
                await self._refuse()
                return
            assert call.problem is not None
            await self._flush(self._dialect.stream_error(call.problem), last=True)
        else:
            await self._flush(last=True)
            self._delivered()

    async def _take(self, event: Event) -> None:
        if event.act and not self._call.settled:
            await self._flush()
            await self._until_settled()
        if event.act and self._call.answer is None:
            raise _Failed
        self._buffer.append(event.data)
        self._acts = self._acts or event.act

    async def _deltas(self) -> AsyncIterator[Delta]:
        """The call's deltas from the first on. Before every wait, what has been rendered is written."""
        call, given = self._call, 0
        while True:
            while given < len(call.deltas):
                given += 1
                yield call.deltas[given - 1]
            if call.answer is not None:
                return
            if call.problem is not None:
                raise _Failed
            await self._flush()
            await self._wait()

    async def _begun(self) -> None:
        """Wait for something to say, so that a call that fails at once is refused with a status that clients understand."""
        call = self._call
        if not call.deltas and not call.settled:
            await self._wait(start=False)
        if not call.deltas and call.problem is not None:
            raise _Failed

    async def _until_settled(self) -> None:
        while not self._call.settled:
            await self._wait()

    async def _wait(self, *, start: bool = True) -> None:
        """Wait until the call has news, or for long enough that the client needs a sign of life. Raises `Disconnected`."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._keepalive_s, self._listener.set)
        try:
            await self._listener.wait()
        finally:
            timer.cancel()
        self._listener.clear()
        if self._connection.closed:
            raise Disconnected
        if start and self._call.request.stream and time.monotonic() - self._written_at >= self._keepalive_s:
            await self._flush(self._dialect.keepalive())

    async def _flush(self, more: bytes = b"", *, last: bool = False) -> None:
        data = b"".join([*self._buffer, more])
        self._buffer.clear()
        if not data and not last:
            return
        if not self._started:
            self._started = True
            await self._connection.start(200, _STREAM_HEADERS)
        await self._connection.write(data, last=last)
        self._written_at = time.monotonic()
        if self._acts and not self._connection.closed:
            self._call.acted = True

    async def _refuse(self) -> None:
        problem = self._call.problem or Problem("upstream", "The call has no answer.")
        await self._connection.respond(*self._dialect.error(problem))

    def _delivered(self) -> None:
        if not self._connection.closed:
            self._call.acted = True
            self._recorder.note(self._call.id, "delivered")
