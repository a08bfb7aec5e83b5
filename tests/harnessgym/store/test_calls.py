"""A call's end is written once."""

import pytest
from sqlalchemy import insert, select, update

from harnessgym.errors import StoreError, TraceError
from harnessgym.store import calls, new_id, sessions
from harnessgym.store.calls import CallOutcome, Segment
from harnessgym.store.tables import calls as table
from harnessgym.store.tables import segments
from harnessgym.tokens import hash_ids, narrow_ids
from harnessgym.traces.forest import Forest


def test_a_call_that_was_finished_after_all_is_not_made_a_failure(store, rollout_id, add_call):
    """A server that goes away while it commits leaves its client not knowing."""
    session = store.write(lambda conn: sessions.add(conn, rollout_id, "key", sampling={})).id
    finished, torn = add_call(session, 0), add_call(session, 1)
    prompt = store.read(lambda conn: calls.of_sessions(conn, [session]))[0].prompt_segment
    said = Segment(new_id(), session, "completion", prompt, (3,), (-0.5,))
    store.write(
        lambda conn: calls.finish(conn, CallOutcome(finished, said, (), "a", "stop", None, "e", {}, {}))
    )
    for call_id in (finished, torn):
        store.write(lambda conn, call_id=call_id: calls.fail(conn, call_id, "the store went away"))
    query = (
        select(table.c.status, table.c.error).where(table.c.session_id == session).order_by(table.c.ordinal)
    )
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
        store.write(
            lambda conn: calls.finish(conn, CallOutcome("nowhere", said, (), "a", "stop", None, "e", {}, {}))
        )
    assert said.id not in store.read(lambda conn: calls.segments_of(conn, [session]))


def add_segment(store, session, at, parent=None):
    """A segment, made when some clock said so."""
    segment = Segment(new_id(), session, "prompt", parent, (1, 2))
    columns = {name: getattr(segment, name) for name in ("id", "session_id", "kind", "parent_id")}
    packed = {"hash": hash_ids(segment.ids), "length": len(segment.ids), "ids": narrow_ids(segment.ids)}
    store.write(lambda conn: conn.execute(insert(segments).values(**columns, **packed, created_at=at)))
    return segment.id


def test_segments_come_behind_their_parents_whatever_their_clocks_said(store, rollout_id):
    session = store.write(lambda conn: sessions.add(conn, rollout_id, "key", sampling={})).id
    root = add_segment(store, session, 5000.0)
    child = add_segment(store, session, 1000.0, root)
    grandchild = add_segment(store, session, 500.0, child)
    other = add_segment(store, session, 700.0)
    found = store.read(lambda conn: calls.segments_of(conn, [session]))
    assert list(found) == [root, child, grandchild, other]
    assert list(Forest.load(session, found.values(), ()).ids(grandchild)) == [1, 2] * 3


def test_segments_in_a_circle_or_without_their_parent_are_refused(store, rollout_id):
    session, second = (
        store.write(lambda conn, key=key: sessions.add(conn, rollout_id, key, sampling={})).id
        for key in ("a", "b")
    )
    elsewhere = add_segment(store, second, 1.0)
    torn = add_segment(store, session, 2.0, elsewhere)
    found = store.read(lambda conn: calls.segments_of(conn, [session]))
    with pytest.raises(TraceError, match=f"segment {torn} has an unknown parent {elsewhere}"):
        Forest.load(session, found.values(), ())
    store.write(
        lambda conn: conn.execute(update(segments).where(segments.c.id == elsewhere).values(parent_id=torn))
    )
    found = store.read(lambda conn: calls.segments_of(conn, [session, second]))
    assert found.keys() == {torn, elsewhere}
    with pytest.raises(TraceError, match="has an unknown parent"):
        Forest.load(session, found.values(), ())
