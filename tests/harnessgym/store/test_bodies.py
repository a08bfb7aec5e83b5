"""Bodies come back byte for byte, split and from a real store, and a turn stores only what it adds."""

import json
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import func, select

from harnessgym.store import bodies, sessions
from harnessgym.store.bodies import join_body, split_body
from harnessgym.store.tables import bodies as body_rows
from harnessgym.store.tables import messages
from proxies.reading import BodyReader, ReadBody, split_of

TOOLS = [{"name": "read", "description": "Reads a file. " * 40}]


@pytest.fixture
def session_id(store, rollout_id):
    return store.write(lambda conn: sessions.add(conn, rollout_id, "k", sampling={})).id


def conversation(said, **more):
    turns = [{"role": "user", "content": text} for text in said]
    return json.dumps({"model": "m", "messages": turns, "tools": TOOLS, **more}, ensure_ascii=False).encode()


def test_a_conversation_that_grows_branches_and_comes_back(store, session_id, add_call):
    reader, said, written = BodyReader(), [], {}
    for turn in range(40):
        said = [*said, f"turn {turn}: ü"] if turn != 25 else [*said[:10], "edited"]
        body = conversation(said, stream=turn % 7 == 0)
        read = reader.read(body)
        call_id = add_call(session_id, turn, split_of(read))
        assert isinstance(read, ReadBody)
        if turn != 12:  # as if nobody had been told of that commit yet
            read.stored(call_id, committed())
        written[call_id] = body
    assert {
        call_id: store.read(lambda conn, c=call_id: bodies.of_call(conn, c)) for call_id in written
    } == written
    hashes = store.read(
        lambda conn: conn.execute(select(body_rows.c.message_hashes).order_by(body_rows.c.id)).scalars().all()
    )
    assert [len(row) for row in hashes] == [1] * 13 + [2] + [1] * 26
    texts = store.read(lambda conn: conn.execute(select(func.count()).select_from(messages)).scalar_one())
    assert texts == 40 + 3  # and what is around them: with and without `stream`, and around a single one


def test_what_cannot_be_a_text_stays_in_its_row(store, session_id, add_call):
    for ordinal, body in enumerate(
        [b"\xff" * 1_000, b"\0" * 1_000, b"", b"short", "längeres ".encode() * 100]
    ):
        call_id = add_call(session_id, ordinal, split_body(body))
        assert store.read(lambda conn, c=call_id: bodies.of_call(conn, c)) == body
    shared = store.read(
        lambda conn: conn.execute(select(body_rows.c.remainder_hash).order_by(body_rows.c.id)).scalars().all()
    )
    assert [key is not None for key in shared] == [False, False, False, False, True]


def test_a_call_without_a_body_has_none(store, session_id, add_call):
    call_id = add_call(session_id, 0)
    assert store.read(lambda conn: bodies.of_call(conn, call_id)) is None


def committed():
    future = Future()
    future.set_result(None)
    return future


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
