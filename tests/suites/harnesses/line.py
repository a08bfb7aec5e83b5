"""The line between the sandbox's socket and the proxy, which loses an answer or tears one where it is told
to.

Where an answer tears is told by what is in it, never by a number of bytes or by time: so both sides see the
same in every run.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from proxies.upstreams.scripted import ScriptedUpstream

Tear = Literal["thought", "words", "call"]
"""What of the answer arrives last. thought, words: a piece of them; the agent leaves while the policy
still speaks, and if it asks again with the same prompt, it must get the same call. call: a tool call; the
proxy has given the whole answer, nothing behind the call arrives, and whoever asks again must get a call
of its own."""
WORD = " lantern"
"""The first answer to say this is the one that tears. It is one token, so no stream takes it apart."""
_CALL = re.compile(rb"POST \S*(chat/completions|messages|responses|[gG]enerateContent)(\?\S*)? HTTP")
_ANSWER = b"HTTP/1.1 200"
_EVENT_END, _LAST_CHUNK = b"\n\n", b"\r\n0\r\n\r\n"
_TOOL_CALL = re.compile(
    rb'"tool_calls":|input_json_delta|output_item\.done.*"function_call"|"functionCall"', re.DOTALL
)
"""An event that holds a whole tool call, by protocol: chat, messages, responses, gemini."""


@dataclass
class Line:
    """Carries bytes, and counts what it carries."""

    path: Path
    port: int
    engines: Sequence[ScriptedUpstream]
    lost: frozenset[int] = frozenset()
    """Numbers of the answers (from 0, over all connections) of which nothing arrives."""
    tear: Tear | None = None
    asked: int = 0
    """Requests for an answer of the policy."""
    answers: int = 0
    cuts: int = 0
    """Answers that were lost or torn."""
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Listens."""
        server = await asyncio.start_unix_server(self._serve, self.path)
        os.chmod(self.path, 0o666)
        try:
            yield
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy_reader, proxy_writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers += [writer, proxy_writer]
        await asyncio.gather(
            self._ask(reader, proxy_writer), self._answer(proxy_reader, proxy_writer, writer)
        )

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.asked += bool(_CALL.match(data))
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, proxy_writer: asyncio.StreamWriter, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if data.startswith(_ANSWER) and self._loses():
                    await self._hang_up(reader, proxy_writer)
                    break
                if self.tear is not None and not self.cuts and WORD.encode() in data:
                    self.cuts += 1
                    writer.write(await self._torn(data, reader, proxy_writer))
                    break
                writer.write(data)
                await writer.drain()
        writer.close()

    def _loses(self) -> bool:
        self.answers += 1
        lost = self.answers - 1 in self.lost
        self.cuts += lost
        return lost

    async def _torn(
        self, data: bytes, reader: asyncio.StreamReader, proxy_writer: asyncio.StreamWriter
    ) -> bytes:
        """What arrives of an answer of which `data` has come."""
        end = data.index(WORD.encode())
        if self.tear != "call":
            await self._hang_up(reader, proxy_writer)
            return data[: data.index(_EVENT_END, end)] + _EVENT_END
        while not data.endswith(_LAST_CHUNK):
            data += await reader.read(1 << 16)
        await self._hang_up(reader, proxy_writer)
        while True:
            begin, end = end, data.index(_EVENT_END, end) + len(_EVENT_END)
            if _TOOL_CALL.search(data, begin, end):
                return data[:end]

    async def _hang_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Close the proxy's side, and wait until the proxy has seen it; the policy says no more in
        between.
        """
        with _held(self.engines):
            writer.write_eof()
            while await reader.read(1 << 16):
                pass


@contextmanager
def _held(engines: Sequence[ScriptedUpstream]) -> Iterator[None]:
    for engine in engines:
        engine.gate.clear()
    try:
        yield
    finally:
        for engine in engines:
            engine.gate.set()
