"""What the proxy holds a vLLM server to that does not label its tokens, with a scripted server; the real
one is met beside.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from harnessgym.errors import UpstreamLost
from harnessgym.message import Sampling
from harnessgym.store.workers import WorkerRow, WorkerState
from proxies.upstream import TokenChunk
from proxies.upstreams.vllm import OutsideVllmUpstream
from proxies.workers import WorkerFilter, WorkerTable, connect_upstream

pytestmark = pytest.mark.anyio
DONE = {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}


class Server:
    """Answers `/weight_info` and completions, one connection at a time; it may be told to wait in the
    middle of an answer.
    """

    def __init__(self) -> None:
        self.label: str | None = "default"
        self.status = b"200 OK"
        self.info: bytes | None = None
        self.asked: list[str] = []
        self.aborts = False
        """Whether sequences are aborted before their first token."""
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.tasks = set[Any]()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await self._request(reader):
            path, body = request
            probed = path == "/v1/completions" and not json.loads(body).get("stream")
            self.asked.append("a probe" if probed else path)
            if probed:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            elif path == "/v1/completions":
                await self._complete(writer)
            else:
                found = path == "/health" or self.label is not None
                body = json.dumps({"weight_version": self.label}).encode() if self.info is None else self.info
                status = self.status if found else b"404 Not Found"
                writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))

    async def _request(self, reader: asyncio.StreamReader) -> tuple[str, bytes] | None:
        """The path and the body of the next request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        (length,) = [
            int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length")
        ]
        return head.split()[1], await reader.readexactly(length)

    async def _complete(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for number, finish in enumerate(() if self.aborts else (None, None, "length")):
            choice = {"token_ids": [number], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": finish}
            self._event(writer, {"choices": [choice]})
            if number == 0:
                await self.go_on.wait()
        usage = {"prompt_tokens": 2, "completion_tokens": 0}
        self._event(writer, {"choices": [], "usage": usage} if self.aborts else DONE)
        writer.write(b"0\r\n\r\n")

    @staticmethod
    def _event(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
        data = f"data: {json.dumps(value)}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Server, Callable[[int], OutsideVllmUpstream]]]:
    engine, made = Server(), list[OutsideVllmUpstream]()
    server = await asyncio.start_server(engine.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    def connect(version: int) -> OutsideVllmUpstream:
        upstream = connect_upstream(
            WorkerRow("v0", None, "vllm", f"http://127.0.0.1:{port}", version, "ready")
        )
        assert isinstance(upstream, OutsideVllmUpstream)
        made.append(upstream)
        return upstream

    async with server:
        yield engine, connect
        for upstream in made:
            upstream.close()
        await asyncio.gather(*engine.tasks)


async def collect(upstream: OutsideVllmUpstream) -> list[TokenChunk]:
    async with aclosing(upstream.generate([1, 2], Sampling(max_tokens=3), salt="s")) as chunks:
        return [chunk async for chunk in chunks]


@pytest.mark.parametrize(
    ("label", "version"), [("3@policy", 3), ("3", 3), ("default", 0), ("0@policy", 0), (None, 5)]
)
async def test_each_connection_begins_with_the_question_which_weights_are_served(
    label: str | None, version: int
) -> None:
    async with served() as (engine, connect):
        engine.label, upstream = label, connect(version)
        for _ in range(2):
            assert [token for chunk in await collect(upstream) for token in chunk.versions] == [version] * 3
        # Once for all sequences it is asked whether it reports routed experts.
        assert engine.asked == [
            "/weight_info",
            "a probe",
            "/v1/completions",
            "/v1/completions",
        ]


@pytest.mark.parametrize(
    ("label", "version"), [("default", 3), ("2@policy", 3), ("installing", 3), ("3@policy", 0), ("", 0)]
)
async def test_an_engine_with_other_weights_is_lost_and_unhealthy(label: str, version: int) -> None:
    async with served() as (engine, connect):
        engine.label, upstream = label, connect(version)
        with pytest.raises(
            UpstreamLost,
            match=f"serves weights '{label}', but the worker is registered with version {version}",
        ):
            await collect(upstream)
        assert not await upstream.healthy()
        assert "/v1/completions" not in engine.asked
        engine.label = f"{version}@policy"
        assert await upstream.healthy()


@pytest.mark.parametrize(
    "status", [b"500 Internal Server Error", b"503 Service Unavailable", b"401 Unauthorized"]
)
async def test_an_engine_that_does_not_say_what_it_serves_is_lost(status: bytes) -> None:
    async with served() as (engine, connect):
        engine.status, upstream = status, connect(3)
        with pytest.raises(UpstreamLost, match=f"answers with status {int(status[:3])}"):
            await collect(upstream)
        assert "/v1/completions" not in engine.asked


@pytest.mark.parametrize("body", [b"ok", b"[]", b'{"error": "?"}'])
async def test_what_answers_any_path_is_not_asked_for_its_version(body: bytes) -> None:
    async with served() as (engine, connect):
        engine.info = body
        assert {version for chunk in await collect(connect(5)) for version in chunk.versions} == {5}


async def test_an_answer_ends_when_the_worker_gets_another_version_in_its_middle() -> None:
    async with served() as (engine, connect):
        engine.label, upstream = "1@policy", connect(1)
        engine.go_on.clear()
        async with aclosing(upstream.generate([1, 2], Sampling(max_tokens=3), salt="s")) as chunks:
            assert (await anext(chunks)).versions == (1,)
            upstream.version = 2
            engine.go_on.set()
            with pytest.raises(UpstreamLost, match="went from version 1 to 2 in the middle"):
                await anext(chunks)


async def test_a_sequence_that_is_aborted_before_its_first_token_is_an_aborted_one() -> None:
    """vLLM 0.32 then sends its usage alone (entrypoints/openai/completion/serving.py skips empty chunks)."""
    async with served() as (engine, connect):
        engine.aborts = True
        (chunk,) = await collect(connect(0))
        assert (chunk.ids, chunk.finish_reason, chunk.completion_tokens) == ((), "abort", 0)


async def test_a_worker_that_is_drained_is_not_suspected_for_the_calls_that_were_ended() -> None:
    table = WorkerTable(lambda row: OutsideVllmUpstream(row.address, version=row.version))
    row = WorkerRow("v0", None, "vllm", "http://127.0.0.1:1", 0, "ready")
    await table.put(row)

    async def lose(state: WorkerState) -> None:
        await table.set_state("v0", "ready")
        async with table.taking(WorkerFilter()):
            await table.set_state("v0", state)
            raise UpstreamLost("aborted")

    for state, suspected in (("draining", False), ("ready", True)):
        with pytest.raises(UpstreamLost):
            await lose(state)
        assert table.all()[0].suspect == suspected
    table.close()
