"""Calls and their tokens: an end is written once, and what was observed is never weakened."""

import pytest
from sqlalchemy import insert, select, update

from harnessgym.errors import StoreError, TraceError
from harnessgym.outcome.engine_silence import CallSilence
from harnessgym.store import calls, new_id, sessions
from harnessgym.store.calls import CallOutcome, Segment
from harnessgym.store.tables import calls as table
from harnessgym.store.tables import segments
from harnessgym.tokens import VersionSpan, hash_ids, narrow_ids
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


@pytest.fixture
def session(store, rollout_id):
    """The id of a session without calls."""
    return store.write(lambda conn: sessions.add(conn, rollout_id, "a session", sampling={})).id


def status_of(store, call_id):
    query = select(table.c.status).where(table.c.id == call_id)
    return store.read(lambda conn: conn.execute(query).scalar_one())


STRONGER = {
    "undelivered": {"committed"},
    "delivered": {"committed", "undelivered"},
    "acknowledged": {"committed", "undelivered", "delivered", "aborted"},
}


@pytest.mark.parametrize("observed", STRONGER)
def test_an_observation_never_weakens_a_status(store, session, add_call, observed):
    statuses = ("intent", *calls.FINISHED, "error")
    by_status = {status: add_call(session, place) for place, status in enumerate(statuses)}
    for status, call_id in by_status.items():
        store.write(lambda conn, call_id=call_id, status=status: calls.set_status(conn, call_id, status))
    store.write(lambda conn: calls.observe(conn, list(by_status.values()), observed))
    changed = {status for status, call_id in by_status.items() if status_of(store, call_id) != status}
    assert changed == STRONGER[observed]
    assert {status_of(store, by_status[status]) for status in changed} == {observed}


def test_observing_no_calls_or_unknown_ones_changes_nothing(store, session, add_call):
    call_id = add_call(session, 0)
    for call_ids in ([], ["nowhere"]):
        store.write(lambda conn, call_ids=call_ids: calls.observe(conn, call_ids, "delivered"))
    assert status_of(store, call_id) == "intent"


def test_a_status_may_come_with_an_error_and_the_next_one_takes_it_away(store, session, add_call):
    call_id = add_call(session, 0)
    query = select(table.c.status, table.c.error).where(table.c.id == call_id)
    for status, error in (("error", "the engine went away"), ("aborted", None)):
        store.write(lambda conn, s=status, e=error: calls.set_status(conn, call_id, s, e))
        assert tuple(store.read(lambda conn: conn.execute(query).one())) == (status, error)


def test_a_finished_call_has_its_tokens_their_versions_and_its_usage(store, session, add_call):
    call_id = add_call(session, 0)
    (intent,) = store.read(lambda conn: calls.of_sessions(conn, [session]))
    assert (intent.status, intent.completion_len, intent.version_spans, intent.usage) == (
        "intent",
        None,
        (),
        {},
    )
    completion = Segment(new_id(), session, "completion", intent.prompt_segment, (70_000, 3), (-0.1, -2.5))
    spans = (VersionSpan(0, 1, 4), VersionSpan(1, 2, 5))
    usage = {"prompt_tokens": 2, "completion_tokens": 2}
    outcome = CallOutcome(call_id, completion, spans, "answer", "length", None, "engine-1", usage, {})
    store.write(lambda conn: calls.finish(conn, outcome))
    (call,) = store.read(lambda conn: calls.of_sessions(conn, [session]))
    assert (call.status, call.finish_reason, call.answer_digest) == ("committed", "length", "answer")
    assert (call.completion_len, call.completion_segment) == (2, completion.id)
    assert (call.version_spans, call.usage) == (spans, usage)
    stored = store.read(lambda conn: calls.segments_of(conn, [session]))
    assert list(stored[completion.id].ids) == [70_000, 3]
    assert list(stored[completion.id].logprobs) == pytest.approx([-0.1, -2.5])
    assert (stored[completion.id].kind, stored[completion.id].parent_id) == (
        "completion",
        call.prompt_segment,
    )
    assert stored[call.prompt_segment].logprobs is None


def test_calls_come_by_session_and_ordinal(store, rollout_id, session, add_call):
    other = store.write(lambda conn: sessions.add(conn, rollout_id, "another", sampling={})).id
    places = {add_call(name, ordinal): (name, ordinal) for ordinal in (1, 0, 2) for name in (other, session)}
    recorded = store.read(lambda conn: calls.of_sessions(conn, [session, other]))
    assert [places[call.id] for call in recorded] == sorted(places.values())
    assert store.read(lambda conn: calls.of_sessions(conn, [])) == []


@pytest.mark.parametrize(
    ("kind_of_segment", "ids", "logprobs"),
    [("prompt", (1, 2), (-0.1, -0.2)), ("completion", (1, 2), (-0.1,)), ("completion", (1,), (-0.1, -0.2))],
)
def test_only_a_completion_has_logprobs_and_one_for_each_token(kind_of_segment, ids, logprobs):
    with pytest.raises(AssertionError):
        Segment("s", "session", kind_of_segment, None, ids, logprobs)


def test_a_call_waited_for_its_engine_unless_an_equal_one_was_answered(store, rollout_id, session, add_call):
    silent, again, other, plain = (add_call(session, ordinal) for ordinal in range(4))
    rows = {
        silent: {"status": "aborted", "chain_digest": "same", "timings": {"silent_s": 4.0, "lost_s": 2.0}},
        again: {"status": "delivered", "chain_digest": "same", "timings": {"whole_s": 1.5}},
        other: {"status": "aborted", "chain_digest": "other", "kind": "side", "upstream": "engine-7"},
        plain: {"status": "error", "chain_digest": "plain", "timings": None},
    }
    for call_id, values in rows.items():
        row = update(table).where(table.c.id == call_id).values(values)
        store.write(lambda conn, row=row: conn.execute(row))
    assert store.read(lambda conn: calls.silences(conn, rollout_id)) == [
        CallSilence(silent, policy=True, upstream="e", answered=True, silent_s=4.0, lost_s=2.0),
        CallSilence(again, policy=True, upstream="e", answered=True, whole_s=1.5),
        CallSilence(other, policy=False, upstream="engine-7", answered=False),
        CallSilence(plain, policy=True, upstream="e", answered=False),
    ]
    assert store.read(lambda conn: calls.silences(conn, "another")) == []
