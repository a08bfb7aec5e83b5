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
    ToolCallDelta,
    Usage,
)
from proxies.dialects import DIALECTS, load_dialect

ALL = [load_dialect(name) for name in sorted(DIALECTS)]
every_dialect = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
GOOD = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}


def body(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def run(dialect: Dialect, deltas: list[Delta], include_usage: bool = True) -> list[Event]:
    async def source() -> AsyncIterator[Delta]:
        for delta in deltas:
            yield delta

    async def collect() -> list[Event]:
        request = ModelRequest("m", (), stream=True, include_usage=include_usage)
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
    events = run(dialect, [*deltas, Finished(reason, Usage(3, 4))])
    assert events[-1].act
    held = b"".join(event.data for event in events if not event.act)
    for sign in (b'"arguments"', b"partial_json", b'_reason":"', b"[DONE]", b"message_stop"):
        assert sign not in held
    told = sum(b'"arguments"' in event.data or b"partial_json" in event.data for event in events)
    assert told == sum(isinstance(delta, ToolCallDelta) for delta in deltas)
    assert b'_reason":"' in b"".join(event.data for event in events)


@every_dialect
@pytest.mark.parametrize(
    "bad",
    [
        b"", b"{", b"[]", b"\xff\xfe", b'"text"', b"[" * 5000, body(messages=None), body(messages=[]), body(messages="Hi"),
        body(messages=["Hi"]), body(messages=[{}]), body(messages=[{"role": "robot", "content": ""}]), body(model=None),
        body(messages=[{"role": "user"}]), body(messages=[{"role": "user", "content": 3}]), body(stream="yes"), body(model=3),
        body(messages=[{"role": "user", "content": [{"type": "text"}]}]), body(tools={}), body(tools=[3]), body(max_tokens=0),
        body(messages=[{"role": "user", "content": "x", "depth": json.loads("[" * 200 + "]" * 200)}]), body(max_tokens="many"),
    ],
    ids=lambda bad: bad[:60].decode("latin1"),
)  # fmt: skip
def test_malformed_requests_are_the_providers_400(dialect: Dialect, bad: bytes) -> None:
    with pytest.raises(RequestProblem) as caught:
        dialect.parse(bad, {})
    assert caught.value.problem.kind == "malformed"
    assert dialect.error(caught.value.problem)[0] == 400


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.sampled_from(["user", "text", "assistant", "tool_use"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", "name", "input", "id", "function"]), inner, max_size=4
        ),
    ),
    max_leaves=12,
)


@every_dialect
@given(
    name=st.sampled_from(["messages", "tools", "tool_choice", "system", "stop", "stream_options", "output_config", "n"]),
    value=JSON,
)
def test_any_json_is_read_or_refused(dialect: Dialect, name: str, value: object) -> None:
    kinds: set[str] = set()
    for given_value in (value, [value]):
        try:
            request = dialect.parse(body(**{name: given_value}), {})
        except RequestProblem as error:
            kinds.add(error.problem.kind)
        else:
            assert all(message.digest for message in request.messages)
    assert kinds <= {"malformed", "unsupported"}


@every_dialect
def test_half_a_surrogate_pair_is_replaced(dialect: Dialect) -> None:
    request = dialect.parse(body(messages=[{"role": "user", "content": "cut \ud83c"}]), {})
    assert request.messages[0].content == "cut \ufffd"


@every_dialect
def test_secrets_are_read_and_not_kept(dialect: Dialect) -> None:
    assert dialect.secret({"authorization": "Bearer abc"}) == "abc"
    assert dialect.secret({"authorization": "Basic abc"}) is None
    assert dialect.secret({}) is None
    headers = {"authorization": "Bearer abc", "x-api-key": "abc", "cookie": "c", "x-session-id": "s"}
    assert dialect.parse(body(), headers).headers == {"x-session-id": "s"}


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
        "upstream",
    ):
        status, headers, text = dialect.error(Problem(kind, "Why."))
        assert status >= 400
        assert headers["content-type"] == "application/json"
        assert json.loads(text)["error"]["message"] == "Why."
        assert b"Why." in dialect.stream_error(Problem(kind, "Why."))


@every_dialect
def test_a_tool_choice_must_be_among_the_tools(dialect: Dialect) -> None:
    choice = {"type": "function", "function": {"name": "f"}} if dialect.name == "chat" else {"type": "tool", "name": "f"}
    with pytest.raises(RequestProblem, match="'f' is not among the tools"):
        dialect.parse(body(tool_choice=choice), {})


def test_unknown_dialects_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="chat"):
        load_dialect("telegraph")
