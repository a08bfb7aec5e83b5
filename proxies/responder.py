"""Writes a call's answer to one client, whole or streamed, and never ahead of the commit.

Text and reasoning are streamed as they come. An event on which a client can act, and everything after it,
waits until the call is committed. An answer that is not streamed waits as a whole.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from proxies.call import Call
from proxies.connection import Connection, Disconnected
from proxies.dialect import Delta, Dialect, Event, Problem
from proxies.recorder import Recorder

_STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


class _Failed(Exception):
    """One of the calls has failed."""


class Responder:
    """Answers one request with the answer of one call, or of several siblings.

    Siblings' deltas are interleaved. The client can act on none of them before all are committed.
    """

    def __init__(
        self,
        connection: Connection,
        dialect: Dialect,
        calls: Sequence[Call],
        recorder: Recorder,
        keepalive_s: float,
    ) -> None:
        self._connection = connection
        self._dialect = dialect
        self._calls = calls
        self._request = calls[0].request
        self._stamp = calls[0].stamp
        self._prompt_len = calls[0].prompt_len
        self._recorder = recorder
        self._keepalive_s = keepalive_s
        self._listener = asyncio.Event()
        self._buffer: list[bytes] = []
        self._acts = False
        """Whether the buffer holds an event on which a client can act."""
        self._started = False
        self._written_at = time.monotonic()

    async def run(self, grace_s: float) -> None:
        """Respond. If the client leaves first, its calls run on for their grace time."""
        for call in self._calls:
            call.join(self._listener)
        self._connection.watch(self._listener)
        try:
            await (self._stream() if self._request.stream else self._whole())
        except Disconnected:
            for call in self._calls:
                if call.answer is not None and not call.acted:
                    self._recorder.note(call.id, "undelivered")
        finally:
            await self._connection.release()
            for call in self._calls:
                call.leave(self._listener, grace_s)

    @property
    def _settled(self) -> bool:
        return all(call.settled for call in self._calls)

    @property
    def _problem(self) -> Problem | None:
        return next((call.problem for call in self._calls if call.problem is not None), None)

    async def _whole(self) -> None:
        await self._until_settled()
        answers = [call.answer for call in self._calls if call.answer is not None]
        if len(answers) < len(self._calls):
            await self._refuse()
            return
        body = self._dialect.render(answers, self._request)
        await self._connection.respond(200, {"content-type": "application/json"}, body)
        self._delivered()

    async def _stream(self) -> None:
        try:
            await self._begun()
            rendered = self._dialect.stream(self._deltas(), self._stamp, self._request, self._prompt_len)
            async with aclosing(rendered) as events:  # type: ignore[type-var]
                async for event in events:
                    await self._take(event)
        except _Failed:
            if not self._started:
                await self._refuse()
                return
            assert self._problem is not None
            await self._flush(self._dialect.stream_error(self._problem, self._stamp), last=True)
        else:
            await self._flush(last=True)
            self._delivered()

    async def _take(self, event: Event) -> None:
        # Everything before this event is written now, since the commit may take a while. The event itself
        # goes into the buffer only after it: a harness must not run a tool call that a crash would undo.
        if event.act and not self._settled:
            await self._flush()
            await self._until_settled()
        if event.act and self._problem is not None:
            raise _Failed
        self._buffer.append(event.data)
        self._acts = self._acts or event.act

    async def _deltas(self) -> AsyncIterator[Delta]:
        """All deltas of the calls. Before every wait, the events rendered so far are written."""
        sent = [0] * len(self._calls)
        while True:
            for choice, call in enumerate(self._calls):
                while sent[choice] < len(call.deltas):
                    sent[choice] += 1
                    delta = call.deltas[sent[choice] - 1]
                    yield replace(delta, choice=choice) if choice else delta
            if self._problem is not None:
                raise _Failed
            if self._settled:
                # Rendering a delta may have awaited, and more deltas have come since.
                if all(end == len(call.deltas) for end, call in zip(sent, self._calls, strict=True)):
                    return
                continue
            await self._flush()
            await self._wait()

    async def _begun(self) -> None:
        """Wait for the first delta or the end, so that a call that fails at once gets an error status."""
        if not self._settled and not any(call.deltas for call in self._calls):
            await self._wait(start=False)
        if self._problem is not None and not any(call.deltas for call in self._calls):
            raise _Failed

    async def _until_settled(self) -> None:
        while not self._settled:
            await self._wait()

    async def _wait(self, *, start: bool = True) -> None:
        """Wait until a call has news, or a keep-alive is due. Raises `Disconnected`."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._keepalive_s, self._listener.set)
        try:
            await self._listener.wait()
        finally:
            timer.cancel()
        self._listener.clear()
        if self._connection.closed:
            raise Disconnected
        if start and self._request.stream and time.monotonic() - self._written_at >= self._keepalive_s:
            await self._flush(self._dialect.keepalive())

    async def _flush(self, more: bytes = b"", *, last: bool = False) -> None:
        data = b"".join([*self._buffer, more])
        self._buffer.clear()
        if not data and not last:
            return
        if not self._started:
            self._started = True
            await self._connection.start(200, {"content-type": self._request.stream_type, **_STREAM_HEADERS})
        await self._connection.write(data, last=last)
        self._written_at = time.monotonic()
        if self._acts and not self._connection.closed:
            for call in self._calls:
                call.acted = True

    async def _refuse(self) -> None:
        problem = self._problem or Problem("upstream", "The call has no answer.")
        await self._connection.respond(*self._dialect.error(problem))

    def _delivered(self) -> None:
        if not self._connection.closed:
            for call in self._calls:
                call.acted = True
                self._recorder.note(call.id, "delivered")
