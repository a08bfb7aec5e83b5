"""A call's body comes back byte for byte from a real store, and a turn stores what it adds."""

import json
from concurrent.futures import Future

import pytest
from sqlalchemy import func, select

from harnessgym.store import bodies, sessions
from harnessgym.store.body_parts import split_body
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
