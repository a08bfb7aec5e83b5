"""Clients that speak HTTP in ways that few do: HTTP/1.0, offers of HTTP/2, compressed bodies, other routes."""

import asyncio
import contextlib
import gzip
import json
import re
import time
import zlib
from collections.abc import Mapping
from typing import Any

import openai
import pytest

from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]
ASK: dict[str, Any] = {"model": "m", "max_tokens": 20, "messages": HI}
ANSWER = "Yes.<|im_end|>"


async def raw(world: World, head: str, body: bytes) -> tuple[str, bytes]:
    """Send a request byte for byte; the head and the rest of what comes until the connection closes."""
    assert world.proxy.url is not None
    host, port = world.proxy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(head.replace("\n", "\r\n").encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    try:
        answer = await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    return top.decode().lower(), rest


async def test_a_body_that_comes_with_an_offer_of_http2_is_read(make_world: MakeWorld) -> None:
    """The head that Java's HttpClient sends by default."""
    async with make_world(ANSWER) as world:
        session = await world.open()
        head = (
            f"POST /s/{session.key}/v1/chat/completions HTTP/1.1\nConnection: Upgrade, HTTP2-Settings\n"
            "Host: x\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\nUpgrade: h2c\n"
            "Content-Type: application/json\n"
        )
        assert world.proxy.url is not None
        host, port = world.proxy.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(ASK).encode()
        for _ in range(2):  # the connection goes on as HTTP/1.1
            writer.write(
                head.replace("\n", "\r\n").encode() + f"Content-Length: {len(body)}\r\n\r\n".encode()
            )
            writer.write(body)
            top = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode().lower()
            assert top.startswith("http/1.1 200")
            length = next(
                line.split(":")[1] for line in top.splitlines() if line.startswith("content-length")
            )
            answer = json.loads(await reader.readexactly(int(length)))
            assert answer["choices"][0]["message"]["content"] == "Yes."
        writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_http_1_0_gets_whole_answers(make_world: MakeWorld, stream: bool) -> None:
    async with make_world(ANSWER) as world:
        session = await world.open()
        head = f"POST /s/{session.key}/v1/chat/completions HTTP/1.0\n"
        top, rest = await raw(world, head, json.dumps({**ASK, "stream": stream}).encode())
        assert "transfer-encoding" not in top
        assert f"content-length: {len(rest)}" in top
        if stream:
            assert rest.startswith(b"data: {")
            assert rest.endswith(b"data: [DONE]\n\n")
        else:
            assert json.loads(rest)["choices"][0]["message"]["content"] == "Yes."


TOOL_CALL = 'Wait.<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call><|im_end|>'


async def test_an_http_1_0_client_that_leaves_before_its_stream_is_written_gets_the_same_answer(
    make_world: MakeWorld,
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = json.dumps({**ASK, "max_tokens": 100, "stream": True, "tools": [tool]}).encode()
    async with make_world(upstreams={}) as world:
        engine = ScriptedUpstream([world.text(TOOL_CALL)], delay_s=0.1)
        await world.add_worker("w0", engine)
        session = await world.open()
        head = f"POST /s/{session.key}/v1/chat/completions HTTP/1.0\n"
        leaving = asyncio.create_task(raw(world, head, body))
        (held,) = [each for each in world.proxy.sessions.open() if each.row.id == session.session_id]
        # Some of the answer has come, and is held for the rest.
        while not any(call.deltas for call in held.live.values()):
            await asyncio.sleep(0.01)
        leaving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaving
        await world.status(session, 0, "undelivered")
        top, rest = await raw(world, head, body)
        assert " 200 " in top
        assert rest.endswith(b"data: [DONE]\n\n")
        assert len(world.calls(session)) == len(engine.asked) == 1


async def test_what_is_left_of_a_refused_body_is_thrown_away_slowly(make_world: MakeWorld) -> None:
    async with make_world(ANSWER, max_body=1_000) as world:
        session = await world.open()
        assert world.proxy.url is not None
        host, port = world.proxy.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        url = f"/s/{session.key}/v1/chat/completions"
        size = 30 * 10**6
        begun = time.monotonic()
        writer.write(
            f"POST {url} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode() + bytes(size)
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        assert head.startswith(b"HTTP/1.1 413")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        # The connection goes on.
        body = json.dumps(ASK).encode()
        writer.write(f"POST {url} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - begun > 0.4
        writer.close()


async def test_a_head_that_does_not_end_is_not_waited_for(make_world: MakeWorld) -> None:
    async with make_world(ANSWER, client_wait_s=0.3) as world:
        session = await world.open()
        assert world.proxy.url is not None
        host, port = world.proxy.url.removeprefix("http://").split(":")
        head = f"GET /s/{session.key}/v1/models HTTP/1.1\r\nhost: x\r\n".encode()
        for begun in (b"", b"GET /", head):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(begun)
            assert await asyncio.wait_for(reader.read(), 20) == b""
            writer.close()
        # A connection that has done nothing for as long is kept, and its next request must come whole too.
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(2):
            writer.write(head + b"\r\n")
            top = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            length = re.search(rb"content-length: (\d+)", top)
            assert length is not None
            await reader.readexactly(int(length[1]))
            await asyncio.sleep(0.6)
        writer.write(head)
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


COMPRESSED = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
    "deflate, gzip": lambda data: gzip.compress(zlib.compress(data)),
}


@pytest.mark.parametrize("encoding", COMPRESSED)
async def test_compressed_bodies_are_read(make_world: MakeWorld, encoding: str) -> None:
    async with make_world(ANSWER) as world:
        session = await world.open()
        body = COMPRESSED[encoding](json.dumps(ASK).encode())
        url = f"{world.base(session)}/v1/chat/completions"
        response = await world.http.post(url, content=body, headers={"content-encoding": encoding})
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("encoding", "body", "status", "words"),
    [
        ("br", b"x", 400, "'br' is not supported"),
        ("zstd", b"x", 400, "'zstd' is not supported"),
        ("gzip", b"no gzip", 400, "cannot be decompressed"),
        ("gzip", gzip.compress(b"{}" * 1_000)[:-9], 400, "ends too early"),
        ("gzip", gzip.compress(b" " * 50_000_000), 413, "more than"),
    ],
    ids=["br", "zstd", "no gzip", "cut off", "too large"],
)
async def test_what_cannot_be_decompressed_is_refused_in_words(
    make_world: MakeWorld, encoding: str, body: bytes, status: int, words: str
) -> None:
    async with make_world(ANSWER) as world:
        session = await world.open()
        url = f"{world.base(session)}/v1/chat/completions"
        response = await world.http.post(url, content=body, headers={"content-encoding": encoding})
        assert response.status_code == status
        assert words in response.json()["error"]["message"]


async def test_azures_client_gets_answers(make_world: MakeWorld) -> None:
    async with make_world(ANSWER) as world:
        session = await world.open()
        assert world.proxy.url is not None
        async with openai.AsyncAzureOpenAI(
            azure_endpoint=world.proxy.url, api_key=session.key, api_version="2024-10-21"
        ) as client:
            answer = await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "hi"}]
            )
            assert answer.choices[0].message.content == "Yes."
        async with openai.AsyncOpenAI(base_url=f"{world.proxy.url}/openai/v1", api_key=session.key) as client:
            response = await client.responses.create(model="policy", input="hi")
            assert response.output_text == "Yes."
            assert [model.id async for model in await client.models.list()] == ["policy"]


async def test_routes_without_a_version(make_world: MakeWorld) -> None:
    async with make_world(ANSWER) as world:
        session = await world.open()
        base = world.base(session)
        message = await world.http.post(f"{base}/messages", json=ASK)
        assert message.json()["content"][0]["text"] == "Yes."
        counted = await world.http.post(f"{base}/messages/count_tokens", json=ASK)
        assert counted.json()["input_tokens"] > 0
        models = await world.http.get(f"{base}/models")
        assert [card["id"] for card in models.json()["data"]] == ["policy"]


@pytest.mark.parametrize(
    ("headers", "shape"),
    [
        ({"anthropic-version": "2023-06-01"}, {"type", "error"}),
        ({"x-goog-api-client": "genai"}, {"error"}),
        ({}, {"error"}),
    ],
)
async def test_an_unknown_route_is_refused_in_the_shape_of_who_asks(
    make_world: MakeWorld, headers: Mapping[str, str], shape: set[str]
) -> None:
    async with make_world(ANSWER) as world:
        session = await world.open()
        response = await world.http.get(f"{world.base(session)}/v1/nothing", headers=headers)
        assert response.status_code == 404
        assert shape <= set(response.json())
        status = response.json()["error"].get("status")
        assert (status == "NOT_FOUND") == ("x-goog-api-client" in headers)
