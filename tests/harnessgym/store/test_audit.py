"""What an audit reads: the rows of a run as they are stored, whatever they hold."""

import sqlite3
from contextlib import closing

import pytest
from sqlalchemy import update

from harnessgym.store import advantages, audit, policies, rollouts, runs, tables
from harnessgym.store.audit import DanglingReference, ExcludedRange
from harnessgym.store.ledger import ExcludedTokens, exclude_tokens
from tests.harnessgym.store.recorded_runs import begin_run


@pytest.fixture
def recording(store):
    return begin_run(store)


@pytest.fixture
def trained(recording):
    """A group that was trained, and an evaluation."""
    group_id, (first, second) = recording.group()
    session = recording.session(first)
    session.call(versions=(0, 0))
    session.seal()
    recording.session(second).call(versions=(0, 0, 0), kind="side")
    recording.finish([first, second])
    recording.train(group_id, [first, second], 1, 0)
    _, (evaluation,) = recording.group(1, "evaluation")
    recording.session(evaluation).call(versions=(1,))
    return first, second, evaluation


def test_the_tokens_of_a_run_are_read_by_purpose_or_all(store, recording, trained):
    first, second, evaluation = trained
    run_id = recording.run_id

    def sampled(purpose=None):
        found = store.read(lambda conn: audit.sampled(conn, run_id, purpose))
        return {item.rollout_id: (item.length, item.policy_id) for item in found}

    policy = recording.policy_id
    assert sampled("train") == {first: (2, policy), second: (3, policy)}
    assert sampled() == {**sampled("train"), evaluation: (1, policy)}
    excluded = store.read(lambda conn: audit.excluded(conn, run_id, "train"))
    assert [(item.rollout_id, item.start, item.end, item.reason) for item in excluded] == [
        (second, 0, 3, "side_call")
    ]
    assert store.read(lambda conn: audit.excluded(conn, run_id, "evaluation")) == []
    assert store.read(lambda conn: audit.sampled(conn, "another run")) == []


def test_the_ledger_is_in_order_of_versions_with_the_advantages_of_each_entry(store, recording, trained):
    first, second, _ = trained
    recording.train(
        store.read(lambda conn: audit.training_groups(conn, recording.run_id))[0].id, [first], 2, 1
    )
    entries = store.read(lambda conn: audit.ledger(conn, recording.run_id))
    assert [entry.version for entry in entries] == [1, 1, 2]
    assert {(entry.rollout_id, entry.tokens) for entry in entries} == {(first, 2), (second, 0)}
    ranges = store.read(lambda conn: advantages.of_run(conn, recording.run_id))
    by_entry = {item.trained_id: (item.rollout_id, item.start, item.end, item.value) for item in ranges}
    assert by_entry == {entry.id: (first, 0, 2, 0.5) for entry in entries if entry.rollout_id == first}
    newest = [entries[-1].id]
    assert store.read(lambda conn: advantages.of_trainings(conn, newest)) == [
        item for item in ranges if item.trained_id == newest[0]
    ]


def test_groups_that_have_ended_count_their_graded_rollouts(store, recording, trained):
    open_group, _ = recording.group()
    (group,) = store.read(lambda conn: audit.training_groups(conn, recording.run_id))
    assert (group.state, group.size, group.graded) == ("consumed", 2, 2)
    assert group.id != open_group
    store.write(lambda conn: rollouts.set_group_state(conn, open_group, "dropped"))
    assert [
        (item.state, item.graded)
        for item in store.read(lambda conn: audit.training_groups(conn, recording.run_id))
        if item.id == open_group
    ] == [("dropped", 0)]


def test_sessions_with_their_calls_and_segments(store, recording, trained):
    first, second, evaluation = trained
    sessions = store.read(lambda conn: audit.sessions_of(conn, [recording.run_id]))
    assert [(item.rollout_id, item.calls_at_seal) for item in sessions] == [
        (first, 1), (second, None), (evaluation, None),
    ]  # fmt: skip
    (call,) = store.read(lambda conn: audit.calls_of(conn, sessions[0].id))
    segments = {item.id: item for item in store.read(lambda conn: audit.segments_of(conn, sessions[0].id))}
    assert set(segments) == {call.prompt_segment, call.completion_segment}
    assert segments[call.completion_segment].parent_id == call.prompt_segment
    assert len(segments[call.completion_segment].logprobs) == 8
    assert store.read(lambda conn: audit.policies_of(conn, [recording.run_id])) == [recording.policy_id]
    assert {item.id for item in store.read(lambda conn: audit.rollouts_of(conn, recording.run_id))} == {
        *trained
    }


def test_values_of_any_form_are_handed_on(store, recording, trained):
    table = tables.calls
    broken = update(table).values(version_spans="none", completion_len=None, usage=[1])
    store.write(lambda conn: conn.execute(broken))
    for item in store.read(lambda conn: audit.sampled(conn, recording.run_id)):
        assert (item.length, item.version_spans) == (0, "none")
    session = store.read(lambda conn: audit.sessions_of(conn, [recording.run_id]))[0]
    assert [item.usage for item in store.read(lambda conn: audit.calls_of(conn, session.id))] == [[1]]


def test_a_range_beyond_its_call_is_handed_on(store, recording, trained):
    _, _, evaluation = trained
    calls = store.read(lambda conn: audit.sampled(conn, recording.run_id, "evaluation"))
    beyond = ExcludedTokens(evaluation, calls[0].call_id, 5, 9, "test")
    store.write(lambda conn: exclude_tokens(conn, [beyond]))
    assert store.read(lambda conn: audit.excluded(conn, recording.run_id, "evaluation")) == [
        ExcludedRange(evaluation, calls[0].call_id, 5, 9, "test")
    ]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_a_reference_to_a_row_that_is_gone(store, recording):
    gone = store.write(lambda conn: runs.add(conn, "gone", {}, "test", "training"))
    policy = store.write(lambda conn: policies.register(conn, gone, "policy"))
    assert store.read(audit.dangling_references) == []
    # A connection of its own: those of the store enforce foreign keys.
    with closing(sqlite3.connect(store.url.removeprefix("sqlite:///"))) as file, file:
        file.execute("DELETE FROM runs WHERE id = ?", (gone,))
    assert store.read(audit.dangling_references) == [DanglingReference("policies", policy, "runs")]
