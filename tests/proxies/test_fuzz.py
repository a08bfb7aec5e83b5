"""Mutated requests against every protocol: always an answer or the provider's own error, never a 5xx,
never a lost commit.
"""

import asyncio
import contextlib
import copy
import gzip
import itertools
import json
import random
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.traces.verification.verify import verify
from proxies.dialect import ModelRequest, RequestProblem
from proxies.dialects import DIALECTS, load_dialect
from tests.proxies.conftest import MakeWorld

SCHEMA = {"type": "object", "properties": {"key": {"type": "string"}}}
GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"key": 1}'}}]},
                {"role": "tool", "tool_call_id": "c", "content": "done"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "description": "F.", "parameters": SCHEMA}}],
            "tool_choice": "auto", "max_tokens": 4, "stop": ["x"], "n": 1, "stream": False, "temperature": 1.0,
            "stream_options": {"include_usage": True}, "response_format": {"type": "text"},
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "model": "m", "max_tokens": 4, "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"key": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "done"}]},
            ],
            "tools": [{"name": "f", "description": "F.", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto"}, "stop_sequences": ["x"], "stream": False, "thinking": {"type": "disabled"},
        },
    ),
    "responses": (
        "/v1/responses",
        {
            "model": "m", "instructions": "s", "max_output_tokens": 16,
            "input": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "done"},
                {"type": "shell_call", "id": "sh_a_0tm", "call_id": "s", "action": {"commands": ["ls"], "timeout_ms": 1}},
                {"type": "shell_call_output", "call_id": "s", "output": [
                    {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
                {"type": "local_shell_call", "id": "l", "call_id": "l", "action": {
                    "type": "exec", "command": ["ls"], "env": {"A": "b"}}},
                {"type": "local_shell_call_output", "id": "l", "output": "a"},
                {"type": "apply_patch_call", "call_id": "p", "operation": {"type": "create_file", "path": "a", "diff": "+a"}},
                {"type": "apply_patch_call_output", "call_id": "p", "status": "failed", "output": "no"},
                {"type": "computer_call", "call_id": "k", "actions": [{"type": "drag", "path": [{"x": 1, "y": 2}]}]},
            ],
            "tools": [
                {"type": "function", "name": "f", "description": "F.", "parameters": SCHEMA},
                {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "g", "parameters": SCHEMA}]},
                {"type": "shell", "environment": {"type": "local", "skills": []}},
                {"type": "computer_use_preview", "display_width": 8, "display_height": 6, "environment": "mac"},
            ],
            "tool_choice": "auto", "stream": False, "store": False, "reasoning": {"summary": "auto"},
            "text": {"format": {"type": "text"}},
        },
    ),
    "gemini": (
        "/v1beta/models/m:generateContent",
        {
            "systemInstruction": {"parts": [{"text": "s"}]},
            "contents": [
                {"role": "user", "parts": [{"text": "hi"}]},
                {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"key": 1}}}]},
                {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "done"}}}]},
            ],
            "tools": [{"functionDeclarations": [{"name": "f", "description": "F.", "parameters": SCHEMA}]}],
            "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
            "generationConfig": {"maxOutputTokens": 4, "stopSequences": ["x"], "temperature": 1.0},
        },
    ),
    "completions": (
        "/v1/completions",
        {"model": "m", "prompt": "hi", "max_tokens": 4, "stop": "x", "n": 1, "stream": False, "temperature": 1.0},
    ),
}  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**63, 1e308, float("1e-7"), "", "x", "\ud800", "\x00", "🎉" * 50, [], {}, [[]], [None],
    {"type": "x"}, {"": {}}, "<|im_end|>", "x" * 5_000, [{}] * 50, "assistant", "resp_x", 0.5,
)  # fmt: skip
every_dialect = pytest.mark.parametrize("name", sorted(DIALECTS))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], new: Any, *, drop: bool = False) -> Any:
    """A copy with another value, or none, in one place."""
    if not path:
        return new
    out = copy.deepcopy(value)
    at = out
    for key in path[:-1]:
        at = at[key]
    if drop:
        del at[path[-1]]
    else:
        at[path[-1]] = copy.deepcopy(new)
    return out


def test_every_protocol_is_fuzzed() -> None:
    assert set(GOOD) == set(DIALECTS)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@every_dialect
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_reading_gives_a_request_or_a_problem(name: str, data: st.DataObject) -> None:
    path, good = GOOD[name]
    place = data.draw(st.sampled_from(sorted(places(good), key=repr)))
    body = changed(
        good,
        place,
        data.draw(JSON_VALUES | st.sampled_from(ODD)),
        drop=bool(place) and data.draw(st.booleans()),
    )
    raw = json.dumps(body).encode("utf-8", "surrogatepass")
    with contextlib.suppress(RequestProblem):  # whatever else is raised fails the test
        assert isinstance(load_dialect(name).parse(raw, {":path": path, ":query": ""}), ModelRequest)


@pytest.mark.anyio
@every_dialect
async def test_no_request_brings_the_proxy_down(make_world: MakeWorld, name: str) -> None:
    path, good = GOOD[name]
    rng = random.Random(7)
    where = list(places(good))
    async with make_world("Yes, that is so.<|im_end|>") as world:
        session = await world.open()
        url = world.base(session) + path
        statuses: dict[int, int] = {}
        for number in range(160):
            body = good
            for _ in range(rng.choice((1, 1, 2))):
                known = [place for place in where if _exists(body, place)]
                place = rng.choice(known)
                body = changed(body, place, rng.choice(ODD), drop=bool(place) and rng.random() < 0.2)
            raw = json.dumps(body).encode("utf-8", "surrogatepass")
            if number % 8 == 0:
                cut = rng.randrange(len(raw))
                raw = raw[:cut] + bytes([rng.randrange(256)]) + raw[cut + rng.randrange(3) :]
            response = await world.http.post(url, content=raw, headers={"content-type": "application/json"})
            assert response.status_code < 500, (response.status_code, raw)
            if response.status_code != 200:
                assert response.json()["error"]["message"], raw
            statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        assert {200, 400} <= set(statuses)
        assert all(call.status in ("committed", "delivered", "acknowledged") for call in world.calls(session))
        sealed = await world.control.seal(session.session_id)
        assert sealed.calls == len(world.calls(session))
        assert [finding for finding in verify(world.store).findings if finding.kind != "span_version"] == []


HEADERS = (
    "Expect: 100-continue", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings", "HTTP2-Settings: AAM", "Upgrade: websocket",
    "Connection: close", "Connection: keep-alive", "Content-Type: text/plain", "Accept-Encoding: br", "X: \xff\xfe", "X-Empty:",
    "Cookie: " + "c" * 20_000, "Content-Type: application/json; charset=utf-16", "Transfer-Encoding: identity",
)  # fmt: skip
ENCODINGS = (
    ("", bytes), ("gzip", gzip.compress), ("deflate", zlib.compress), ("gzip", bytes), ("deflate", gzip.compress), ("br", bytes),
    ("gzip, gzip", lambda data: gzip.compress(gzip.compress(data))), ("identity", bytes), (" , ", bytes), ("GZIP", gzip.compress),
)  # fmt: skip


def framed(rng: random.Random, path: str, body: bytes) -> bytes:
    """A request with odd headers, an encoding that may be a lie, and its body in chunks or of a length."""
    encoding, encode = rng.choice(ENCODINGS)
    data = encode(body)
    lines = [f"POST {path} HTTP/{rng.choice(('1.1', '1.1', '1.0'))}", "Host: x"]
    lines += rng.sample(HEADERS, rng.randrange(4))
    if encoding:
        lines.append(f"Content-Encoding: {encoding}")
    if "1.1" in lines[0] and rng.random() < 0.4:
        sizes = [rng.randrange(1, len(data) + 1) for _ in range(5)]
        cuts = sorted({0, *sizes, len(data)})
        chunks = [data[start:end] for start, end in itertools.pairwise(cuts)]
        sent = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
        lines.append("Transfer-Encoding: chunked")
    else:
        sent = data
        lines.append(f"content-LENGTH: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + sent


async def answered(port: int, request: bytes, pieces: int) -> bytes:
    """The first line of what comes back; empty if the connection is closed without a word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = -(-len(request) // pieces)
    try:
        for at in range(0, len(request), size):
            writer.write(request[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)
        line = await asyncio.wait_for(reader.readline(), 60)
        if line.startswith(b"HTTP/1.1 100"):
            await reader.readline()
            line = await asyncio.wait_for(reader.readline(), 60)
    except ConnectionError:
        line = b""
    writer.close()
    return line


@pytest.mark.anyio
async def test_no_framing_brings_the_proxy_down(make_world: MakeWorld) -> None:
    rng = random.Random(11)
    async with make_world("Yes, that is so.<|im_end|>", client_wait_s=3.0) as world:
        session = await world.open(limits={"turns": 10_000})
        assert world.proxy.url is not None
        port = int(world.proxy.url.rpartition(":")[2])
        seen: dict[bytes, int] = {}
        for number in range(150):
            path, good = GOOD[rng.choice(sorted(GOOD))]
            request = framed(rng, f"/s/{session.key}{path}", json.dumps(good).encode())
            if number % 10 == 0:
                request = request[: rng.randrange(1, len(request))]  # the rest never comes
                request += b"" if rng.random() < 0.5 else b"\r\n\r\n"
            line = await answered(port, request, rng.choice((1, 1, 3, 50)))
            status = line.split(b" ")[1] if line else b"closed"
            assert status < b"500" or status == b"closed", (line, request[:500])
            seen[status] = seen.get(status, 0) + 1
        assert seen[b"200"] > 30, seen
        assert seen[b"400"] > 5, seen
        assert (await world.http.get(f"{world.base(session)}/v1/models")).status_code == 200
        await world.control.seal(session.session_id)
        assert [finding for finding in verify(world.store).findings if finding.kind != "span_version"] == []


def _exists(value: Any, path: tuple[Any, ...]) -> bool:
    return path in set(places(value))
