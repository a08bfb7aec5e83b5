"""The tokens of one rollout, as its calls sampled them."""

import numpy as np
import pytest
from sqlalchemy import update

from harnessgym.errors import TraceError
from harnessgym.store import policies, rollout_tokens, tables
from harnessgym.store.rollout_tokens import calls_of, completions_of, policies_called, segments_of
from tests.harnessgym.store.recorded_runs import begin_run


@pytest.fixture
def recording(store):
    return begin_run(store)


@pytest.fixture
def rollout(recording):
    """A rollout of two sessions beside another one."""
    _, (rollout_id, other) = recording.group()
    first, second = recording.session(rollout_id), recording.session(rollout_id)
    start = first.call(prompt=4, versions=(0, 0, 1))
    second.call(prompt=3, status="error")
    first.call(prompt=2, after=start, versions=(1,))
    recording.session(other).call()
    return rollout_id, first.calls + second.calls


def test_calls_are_in_order_of_their_sessions_and_name_their_segments(store, recording, rollout):
    rollout_id, made = rollout
    calls = store.read(lambda conn: calls_of(conn, rollout_id))
    assert [call.id for call in calls] == made
    assert [(call.prompt_len, call.completion_len, call.status) for call in calls] == [
        (4, 3, "committed"),
        (9, 1, "committed"),
        (3, None, "error"),
    ]
    assert {call.policy_id for call in calls} == {recording.policy_id}
    assert [list(map(tuple, call.version_spans or ())) for call in calls] == [
        [(0, 2, 0), (2, 3, 1)], [(0, 1, 1)], [],
    ]  # fmt: skip


def test_segments_add_up_to_the_prompts_that_were_asked(store, rollout):
    rollout_id, _ = rollout
    segments = store.read(lambda conn: segments_of(conn, rollout_id))
    assert len(segments) == 5
    for call in store.read(lambda conn: calls_of(conn, rollout_id)):
        length, at = 0, call.prompt_segment
        while at is not None:
            length, at = length + len(segments[at].ids), segments[at].parent_id
        assert length == call.prompt_len
        assert segments[call.prompt_segment].logprobs is None
        if call.completion_segment is not None:
            sampled = segments[call.completion_segment]
            assert (len(sampled.ids), len(sampled.logprobs)) == (call.completion_len,) * 2


def test_completions_are_the_same_ids(store, rollout):
    rollout_id, _ = rollout
    segments, completions = store.read(
        lambda conn: (segments_of(conn, rollout_id), completions_of(conn, rollout_id))
    )
    assert set(completions) == {
        call.completion_segment for call in store.read(lambda conn: calls_of(conn, rollout_id))
    } - {None}
    for name, ids in completions.items():
        assert np.array_equal(ids, segments[name].ids)


def test_a_call_of_another_policy_names_it(store, recording):
    other = store.write(lambda conn: policies.register(conn, recording.run_id, "other"))
    _, (rollout_id,) = recording.group(1)
    session = recording.session(rollout_id)
    session.call()
    session.call(policy_id=other)
    assert set(store.read(lambda conn: policies_called(conn, rollout_id))) == {None, other}
    assert [call.policy_id for call in store.read(lambda conn: calls_of(conn, rollout_id))] == [
        recording.policy_id,
        other,
    ]


def test_bytes_that_are_no_ids_are_refused(store, rollout):
    rollout_id, _ = rollout
    (name, *_) = store.read(lambda conn: completions_of(conn, rollout_id))
    damaged = update(tables.segments).where(tables.segments.c.id == name).values(ids=b"\0")
    store.write(lambda conn: conn.execute(damaged))
    for read in (rollout_tokens.segments_of, rollout_tokens.completions_of):
        with pytest.raises(TraceError, match=f"Segment {name}: 1 bytes are not"):
            store.read(lambda conn, read=read: read(conn, rollout_id))
