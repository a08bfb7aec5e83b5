"""Bodies come back byte for byte, and a conversation sent again is stored once."""

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from harnessgym.store.body_parts import join_body, split_body

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def rebuilt(body: bytes) -> bytes:
    parts = split_body(body)
    return join_body(dict(parts.parts).items(), [key for key, _ in parts.parts], parts.remainder)


@given(
    st.fixed_dictionaries(
        {"model": st.text(), "messages": st.lists(JSON, max_size=5)}, optional={"tools": JSON, "input": JSON}
    ),
    st.booleans(),
    st.sampled_from([None, (",", ":"), (" , ", " : "), (",\n", ":\t")]),
    st.sampled_from([None, 2]),
)
def test_json_bodies_come_back(
    body: dict[str, Any], ascii_only: bool, separators: tuple[str, str] | None, indent: int | None
) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_only, separators=separators, indent=indent).encode(
        errors="surrogatepass"
    )
    assert rebuilt(raw) == raw


@given(st.binary())
@example(b"")
@example(b"\n")
@example(b'{"messages":[')
@example(b'{"messages":[1,2 ,3]}')
@example(b'{"messages":[1,2]')
@example(b'[{"messages":[1]}]')
def test_any_bytes_come_back(raw: bytes) -> None:
    assert rebuilt(raw) == raw


def test_a_longer_conversation_adds_only_its_new_messages() -> None:
    messages = [{"role": "user", "content": str(number)} for number in range(9)]
    short, long = (
        split_body(json.dumps({"model": "m", "messages": messages[:count]}).encode()) for count in (7, 9)
    )
    assert long.parts[:7] == short.parts
    assert len(long.parts) == 9
    assert b"role" not in long.remainder
