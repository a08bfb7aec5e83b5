"""What holds for every dialect: what may be acted upon, what is refused, what is kept from the log."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import ConfigError
from harnessgym.message import ToolCall
from proxies.dialect import (
    Delta,
    Dialect,
    Event,
    Finished,
    ModelRequest,
    Problem,
    ReasoningDelta,
    RequestProblem,
    Stamp,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from proxies.dialects import DIALECTS, load_dialect

ALL = [load_dialect(name) for name in sorted(DIALECTS)]
every_dialect = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
GOOD = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
GOODS = {
    "completions": {"model": "m", "max_tokens": 5, "prompt": "Hi"},
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
        "generationConfig": {"maxOutputTokens": 5},
    },
}
"""Good bodies of protocols that are unlike `GOOD`."""
HEADERS = {"gemini": {":path": "/v1beta/models/m:generateContent"}}
"""Headers without which a protocol's request cannot be read."""
NAMES = {"responses": {"messages": "input", "max_tokens": "max_output_tokens"}}
"""What a protocol calls a field, where it is not what `GOOD` calls it."""
SIGNS = {
    "chat": (b'"arguments"', b'finish_reason":"', b"[DONE]"),
    "completions": (b'finish_reason":"', b"[DONE]"),
    "gemini": (b'"functionCall"', b'finishReason":"'),
    "messages": (b"partial_json", b'stop_reason":"', b"message_stop"),
    "responses": (b"arguments.", b'"arguments":"{', b"response.completed", b"response.incomplete"),
}
"""What on the wire lets a client act."""
TOLD = {
    "chat": b'"arguments"',
    "completions": b'"arguments"',
    "gemini": b'"functionCall"',
    "messages": b"partial_json",
    "responses": b"function_call_arguments.done",
}
"""What there is once for every tool call."""
ENDS = {
    "chat": b'finish_reason":"',
    "completions": b'finish_reason":"',
    "gemini": b'finishReason":"',
    "messages": b'stop_reason":"',
    "responses": b'"status":"',
}
"""What says that, and why, an answer has ended."""


def body(dialect: Dialect, **changes: object) -> bytes:
    names = NAMES.get(dialect.name, {})
    good = GOODS.get(dialect.name, GOOD)
    return json.dumps({names.get(name, name): value for name, value in {**good, **changes}.items()}).encode()


def parse(dialect: Dialect, sent: bytes, **headers: str) -> ModelRequest:
    return dialect.parse(sent, {**HEADERS.get(dialect.name, {}), **headers})


def run(dialect: Dialect, deltas: list[Delta], include_usage: bool = True) -> list[Event]:
    async def source() -> AsyncIterator[Delta]:
        for delta in deltas:
            yield delta

    async def collect() -> list[Event]:
        request = ModelRequest(
            "m", (), stream=True, include_usage=include_usage, headers={":query": "alt=sse"}
        )
        return [event async for event in dialect.stream(source(), Stamp("a1", "m", 1), request, 3)]

    return asyncio.run(collect())


DELTAS = st.lists(
    st.one_of(
        st.text(min_size=1).map(TextDelta),
        st.text(min_size=1).map(ReasoningDelta),
        st.integers(0, 3).map(lambda index: ToolCallDelta(index, ToolCall(f"x{index}", "find", '{"a": 1}'))),
    ),
    max_size=6,
)


@every_dialect
@given(deltas=DELTAS, reason=st.sampled_from(["stop", "length", "tool_calls"]))
def test_whoever_lacks_the_act_events_cannot_act(dialect: Dialect, deltas: list[Delta], reason: str) -> None:
    if dialect.name == "completions":  # raw answers are text
        deltas = [delta for delta in deltas if isinstance(delta, TextDelta)]
    events = run(dialect, [*deltas, Finished(reason, TokenUsage(3, 4))])
    assert events[-1].act
    held = b"".join(event.data for event in events if not event.act)
    for sign in SIGNS[dialect.name]:
        assert sign not in held
    told = sum(TOLD[dialect.name] in event.data for event in events)
    assert told == sum(isinstance(delta, ToolCallDelta) for delta in deltas)
    assert ENDS[dialect.name] in b"".join(event.data for event in events if event.act)


DEEP = json.loads("[" * 200 + "]" * 200)
NO_JSON = [b"", b"{", b"[]", b"\xff\xfe", b'"text"', b"[" * 5000]
BAD: list[dict[str, object]] = [
    {"messages": None}, {"messages": []}, {"messages": {"a": 1}}, {"messages": ["Hi"]}, {"messages": [{}]}, {"model": None},
    {"messages": [{"role": "robot", "content": ""}]}, {"messages": [{"role": "user"}]}, {"stream": "yes"}, {"model": 3},
    {"messages": [{"role": "user", "content": 3}]}, {"tools": {}}, {"tools": [3]}, {"max_tokens": 0}, {"max_tokens": "many"},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"messages": [{"role": "user", "content": "x", "depth": DEEP}]},
]  # fmt: skip
BADS: dict[str, list[dict[str, object]]] = {
    "completions": [
        {"prompt": None}, {"prompt": ""}, {"prompt": []}, {"prompt": [""]}, {"prompt": [[]]}, {"prompt": {"a": 1}},
        {"prompt": 3}, {"prompt": [1, "a"]}, {"prompt": [-1]}, {"prompt": [2**31]}, {"prompt": [True]}, {"prompt": [[1.5]]},
        {"model": None}, {"stream": "yes"}, {"max_tokens": 0}, {"max_tokens": "many"}, {"n": 129}, {"stop": 3}, {"seed": DEEP},
    ],
    "gemini": [
        {"contents": None}, {"contents": []}, {"contents": "Hi"}, {"contents": ["Hi"]}, {"contents": [{}]}, {"tools": [3]},
        {"contents": [{"role": "robot", "parts": [{"text": ""}]}]}, {"contents": [{"parts": [{}]}]}, {"unheardOf": 1},
        {"contents": [{"parts": [{"text": 3}]}]}, {"contents": [{"parts": [{"text": "a", "inlineData": {}}]}]},
        {"contents": [{"parts": [{"functionCall": {"name": "f"}}]}]}, {"generationConfig": {"maxOutputTokens": 0}},
        {"contents": [{"parts": [{"functionResponse": {"name": "f", "response": "text"}}]}]}, {"generationConfig": []},
        {"generationConfig": {"unheardOf": 1}}, {"generationConfig": {"candidateCount": 9}}, {"systemInstruction": "text"},
        {"toolConfig": {"functionCallingConfig": {"mode": "MAYBE"}}}, {"contents": [{"parts": [{"text": "a"}], "x": DEEP}]},
        {"generationConfig": {"responseSchema": {"type": "STRING"}}}, {"tools": [{"functionDeclarations": [{"name": 3}]}]},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "bad"),
    [(dialect, bad) for dialect in ALL for bad in (*NO_JSON, *BADS.get(dialect.name, BAD))],
    ids=lambda value: (
        value[:60].decode("latin1") if isinstance(value, bytes) else getattr(value, "name", str(value)[:60])
    ),
)
def test_malformed_requests_are_the_providers_400(dialect: Dialect, bad: bytes | dict[str, object]) -> None:
    with pytest.raises(RequestProblem) as caught:
        parse(dialect, bad if isinstance(bad, bytes) else body(dialect, **bad))
    assert caught.value.problem.kind == "malformed"
    assert dialect.error(caught.value.problem)[0] == 400


ITEMS = (
    "reasoning",
    "function_call",
    "custom_tool_call_output",
    "namespace",
    "custom",
    "input_image",
    "message",
)
FIELDS = (
    "call_id",
    "output",
    "arguments",
    "summary",
    "encrypted_content",
    "tools",
    "format",
    "parts",
    "mode",
)
GEMINI = (
    "functionCall",
    "functionResponse",
    "inlineData",
    "functionDeclarations",
    "functionCallingConfig",
    "responseSchema",
)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(),
        st.sampled_from(["user", "text", "assistant", "tool_use", *ITEMS]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "name", "input", "id", "function", *FIELDS, *GEMINI]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@every_dialect
@given(
    name=st.sampled_from(
        [
            "messages",
            "tools",
            "tool_choice",
            "system",
            "stop",
            "stream_options",
            "output_config",
            "n",
            "text",
            "include",
            "prompt",
            "contents",
            "toolConfig",
            "generationConfig",
            "systemInstruction",
        ]
    ),
    value=JSON,
)
def test_any_json_is_read_or_refused(dialect: Dialect, name: str, value: object) -> None:
    kinds: set[str] = set()
    for given_value in (value, [value]):
        try:
            request = parse(dialect, body(dialect, **{name: given_value}))
        except RequestProblem as error:
            kinds.add(error.problem.kind)
        else:
            assert all(message.digest for message in request.messages)
    assert kinds <= {"malformed", "unsupported"}


@every_dialect
def test_half_a_surrogate_pair_is_replaced(dialect: Dialect) -> None:
    said: dict[str, dict[str, object]] = {
        "completions": {"prompt": "cut \ud83c"},
        "gemini": {"contents": [{"parts": [{"text": "cut \ud83c"}]}]},
    }
    request = parse(
        dialect,
        body(dialect, **said.get(dialect.name, {"messages": [{"role": "user", "content": "cut \ud83c"}]})),
    )
    assert (request.prompt or request.messages[0].content) == "cut \ufffd"


@every_dialect
def test_secrets_are_read_and_not_kept(dialect: Dialect) -> None:
    assert dialect.secret({"authorization": "Bearer abc"}) == "abc"
    assert dialect.secret({"authorization": "Basic abc"}) is None
    assert dialect.secret({}) is None
    headers = {"authorization": "Bearer abc", "x-api-key": "abc", "cookie": "c", "x-session-id": "s"}
    kept = parse(dialect, body(dialect), **headers).headers
    assert kept == {**HEADERS.get(dialect.name, {}), "x-session-id": "s"}


@every_dialect
def test_every_problem_has_a_status_and_a_json_body(dialect: Dialect) -> None:
    for kind in (
        "malformed",
        "unsupported",
        "unknown_key",
        "sealed",
        "not_found",
        "overflow",
        "limit",
        "overloaded",
        "unavailable",
        "upstream",
    ):
        status, headers, text = dialect.error(Problem(kind, "Why."))
        assert status >= 400
        assert headers["content-type"] == "application/json"
        assert json.loads(text)["error"]["message"] == "Why."
        assert b"Why." in dialect.stream_error(Problem(kind, "Why."), Stamp("a1", "m", 1))


CHOICES: dict[str, dict[str, object]] = {
    "chat": {"tool_choice": {"type": "function", "function": {"name": "f"}}},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}}},
    "messages": {"tool_choice": {"type": "tool", "name": "f"}},
    "responses": {"tool_choice": {"type": "function", "name": "f"}},
}


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_a_tool_choice_must_be_among_the_tools(name: str) -> None:
    dialect = load_dialect(name)
    with pytest.raises(RequestProblem, match="'f' is not among the tools"):
        parse(dialect, body(dialect, **CHOICES[name]))


def test_unknown_dialects_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="chat"):
        load_dialect("telegraph")
