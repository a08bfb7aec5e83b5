"""A call's end is written once."""

import pytest
from sqlalchemy import select

from harnessgym.errors import StoreError
from harnessgym.store import calls, new_id, sessions
from harnessgym.store.calls import CallOutcome, Segment
from harnessgym.store.tables import calls as table


def test_a_call_that_was_finished_after_all_is_not_made_a_failure(store, rollout_id, add_call):
    """A server that goes away while it commits leaves its client not knowing."""
    session = store.write(lambda conn: sessions.add(conn, rollout_id, "key", sampling={})).id
    finished, torn = add_call(session, 0), add_call(session, 1)
    prompt = store.read(lambda conn: calls.of_sessions(conn, [session]))[0].prompt_segment
    said = Segment(new_id(), session, "completion", prompt, (3,), (-0.5,))
    store.write(lambda conn: calls.finish(conn, CallOutcome(finished, said, (), "a", "stop", None, "e", {}, {})))
    for call_id in (finished, torn):
        store.write(lambda conn, call_id=call_id: calls.fail(conn, call_id, "the store went away"))
    query = select(table.c.status, table.c.error).where(table.c.session_id == session).order_by(table.c.ordinal)
    assert store.read(lambda conn: [tuple(row) for row in conn.execute(query)]) == [
        ("committed", None),
        ("error", "the store went away"),
    ]


def test_an_outcome_without_an_intent_is_refused_and_leaves_nothing(store, rollout_id, add_call):
    session = store.write(lambda conn: sessions.add(conn, rollout_id, "key", sampling={})).id
    add_call(session, 0)
    prompt = store.read(lambda conn: calls.of_sessions(conn, [session]))[0].prompt_segment
    said = Segment(new_id(), session, "completion", prompt, (3,), (-0.5,))
    with pytest.raises(StoreError, match="no intent of call nowhere"):
        store.write(lambda conn: calls.finish(conn, CallOutcome("nowhere", said, (), "a", "stop", None, "e", {}, {})))
    assert said.id not in store.read(lambda conn: calls.segments_of(conn, [session]))
