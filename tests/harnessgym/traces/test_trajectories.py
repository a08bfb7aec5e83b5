import sqlite3
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text

from harnessgym.errors import TraceError
from harnessgym.routed_experts import RoutedExperts
from harnessgym.store import agents, new_id, rewards
from harnessgym.store.agents import AgentRow
from harnessgym.store.rewards import RewardRow
from harnessgym.traces.trajectories import Credit, Row, Trajectory, rows_of


def read(recording, rollout_id) -> Trajectory:
    return recording.store.read(lambda conn: rows_of(conn, rollout_id, group_id="g"))


def rollout(recording):
    _, (rollout_id,) = recording.group(1)
    return rollout_id, recording.session(rollout_id)


def test_a_chain_is_one_row_that_repeats_what_the_engine_saw(recording):
    rollout_id, session = rollout(recording)
    first = session.call(6, versions=[0, 0, 1])
    second = session.call(3, after=first, versions=[1, 1])
    found = read(recording, rollout_id)
    (row,) = found.rows
    assert row.ids.tolist() == session.forests[None].ids(session.forests[None].leaves()[0].id)
    assert row.mask.tolist() == [0] * 6 + [1] * 3 + [0] * 3 + [1] * 2
    assert row.versions.tolist() == [-1] * 6 + [0, 0, 1] + [-1] * 3 + [1, 1]
    assert [(turn.start, turn.end, turn.call_id, turn.agent_id) for turn in row.turns] == [
        (6, 9, first, ""),
        (12, 14, second, ""),
    ]
    assert (found.sampled, found.trained, found.exclusions, found.incomplete) == (5, 5, (), None)
    assert (row.rollout_id, row.group_id) == (rollout_id, "g")
    logprobs = [segment.logprobs for segment in session.forests[None].segments.values() if segment.logprobs]
    assert row.logprobs[row.mask == 1].tolist() == pytest.approx([*logprobs[0], *logprobs[1]])


def test_a_shared_segment_is_trained_in_the_first_branch_and_context_in_the_others(recording):
    rollout_id, session = rollout(recording)
    root = session.call(4, versions=[0, 0, 0])
    session.call(2, after=root, versions=[0])
    session.call(3, after=root, versions=[0, 0])
    first, second = read(recording, rollout_id).rows
    assert first.mask.tolist() == [0] * 4 + [1] * 3 + [0] * 2 + [1]
    assert second.mask.tolist() == [0] * 4 + [0] * 3 + [0] * 3 + [1] * 2
    assert second.ids[:7].tolist() == first.ids[:7].tolist()
    assert second.versions[:10].tolist() == [-1] * 10
    assert [turn.call_id for turn in second.turns] == [root, session.calls[2]]


def test_turns_that_heard_the_same_have_the_same_state(recording):
    rollout_id, session = rollout(recording)
    question, answer = [1, 2, 3], [7, 8]
    for _ in range(2):
        first = session.call(question, versions=[0, 0])
        second = session.call(answer, after=first, versions=[0])
        session.call([9], after=second, versions=[0])
    one, other = ([turn.state_key for turn in row.turns] for row in read(recording, rollout_id).rows)
    assert one == other
    assert len(set(one)) == 3


def test_rewards_are_with_what_they_were_given_for(recording):
    rollout_id, session = rollout(recording)
    main = AgentRow(new_id(), rollout_id, session.id, "main", "main", None, "content")
    helper = AgentRow(new_id(), rollout_id, session.id, "helper", "helper", main.id, "content")
    first = session.call(versions=[0])
    second = session.call(versions=[0])
    given = [
        ("rollout", rollout_id, "reward", 1.0), ("rollout", rollout_id, "process.short", 0.5), ("turn", first, "reward", 0.25),
        ("agent", helper.id, "expert", 0.75), ("token", f"{first}:0", "reward", 9.0),
    ]  # fmt: skip

    def write(conn):
        for agent, call in ((main, first), (helper, second)):
            agents.add(conn, agent)
            conn.execute(
                text("UPDATE calls SET agent_id = :agent WHERE id = :call"), {"agent": agent.id, "call": call}
            )
        for unit, target, channel, value in given:
            rewards.add(conn, RewardRow(rollout_id, unit, target, channel, value, "test"))

    recording.store.write(write)
    found = read(recording, rollout_id)
    assert found.credit == Credit({"reward": 1.0, "process.short": 0.5}, {helper.id: {"expert": 0.75}})
    turns = [turn for row in found.rows for turn in row.turns]
    assert [turn.rewards for turn in turns] == [{"reward": 0.25}, {}]
    assert [turn.parent_agent_id for turn in turns] == ["", main.id]
    assert found.of_policy(recording.policy_id).credit == found.credit


def test_siblings_under_one_prompt_are_two_rows(recording):
    rollout_id, session = rollout(recording)
    session.call([1, 2, 3], versions=[0, 0])
    session.call([1, 2, 3], versions=[0])
    found = read(recording, rollout_id)
    assert [row.mask.sum() for row in found.rows] == [2, 1]
    assert len(session.forests[None].children[None]) == 1


def test_rows_of_all_sessions_come_in_order_of_opening(recording):
    rollout_id, first = rollout(recording)
    second = recording.session(rollout_id)
    second.call(versions=[0])
    first.call(versions=[0])
    assert [row.turns[0].call_id for row in read(recording, rollout_id).rows] == [
        first.calls[0],
        second.calls[0],
    ]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": "side"}, "side_call"),
        ({"kind": "count"}, "side_call"),
        ({"status": "aborted"}, "aborted"),
        ({"status": "undelivered"}, "undelivered"),
        ({"sampling": {"top_p": 0.9}}, "truncated_sampling"),
        ({"sampling": {"top_k": 40}}, "truncated_sampling"),
        ({"sampling": {"temperature": 0.0}}, "truncated_sampling"),
    ],
)
def test_an_excluded_leaf_leaves_its_trained_ancestor_a_row(recording, options, reason):
    rollout_id, session = rollout(recording)
    root = session.call(4, versions=[0, 0])
    leaf = session.call(2, after=root, versions=[0, 0, 0], **options)
    found = read(recording, rollout_id)
    (row,) = found.rows
    assert row.mask.tolist() == [0, 0, 0, 0, 1, 1]
    assert [(item.call_id, item.start, item.end, item.reason) for item in found.exclusions] == [
        (leaf, 0, 3, reason)
    ]
    assert (found.sampled, found.trained) == (5, 2)


@pytest.mark.parametrize("kind", ["policy", "compaction"])
@pytest.mark.parametrize("status", ["committed", "delivered", "acknowledged"])
@pytest.mark.parametrize("sampling", [{"temperature": 0.7}, {"top_p": 1.0, "top_k": 0}, {"top_k": -1}])
def test_what_the_policy_sampled_for_the_harness_is_trained(recording, kind, status, sampling):
    rollout_id, session = rollout(recording)
    session.call(kind=kind, status=status, sampling=sampling)
    assert read(recording, rollout_id).exclusions == ()


def test_an_undelivered_call_that_a_later_prompt_contains_is_trained(recording):
    rollout_id, session = rollout(recording)
    root = session.call(4, versions=[0, 0], status="undelivered")
    session.call(2, after=root, versions=[0])
    found = read(recording, rollout_id)
    assert (found.trained, found.exclusions) == (3, ())


def test_an_excluded_call_within_a_branch_is_context(recording):
    rollout_id, session = rollout(recording)
    root = session.call(2, versions=[0], kind="side")
    session.call(2, after=root, versions=[0, 0])
    found = read(recording, rollout_id)
    assert found.rows[0].mask.tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert found.rows[0].logprobs[2] == 0.0
    assert [turn.call_id for turn in found.rows[0].turns] == session.calls


def test_a_rollout_that_trains_nothing_has_no_rows(recording):
    rollout_id, session = rollout(recording)
    assert read(recording, rollout_id) == Trajectory((), (), 0, 0)
    session.call(kind="side")
    assert read(recording, rollout_id).rows == ()


def test_a_completion_without_logprobs_is_text_only(recording):
    rollout_id, session = rollout(recording)
    call = session.call(versions=[0, 0])
    recording.store.write(lambda conn: conn.execute(text("UPDATE segments SET logprobs = NULL")))
    assert [(item.call_id, item.reason) for item in read(recording, rollout_id).exclusions] == [
        (call, "text_only")
    ]


@pytest.mark.parametrize(("status", "words"), [("intent", "never finished"), ("error", "failed")])
def test_a_call_that_did_not_finish_makes_the_trajectory_incomplete(recording, status, words):
    rollout_id, session = rollout(recording)
    root = session.call(versions=[0, 0])
    lost = session.call(after=root, status=status)
    found = read(recording, rollout_id)
    assert lost in found.incomplete
    assert words in found.incomplete
    assert found.trained == 2


def test_a_failed_side_call_loses_nothing(recording):
    rollout_id, session = rollout(recording)
    session.call(kind="side", status="error")
    assert read(recording, rollout_id).incomplete is None


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE segments SET parent_id = id WHERE kind = 'prompt'", "cycle"),
        ("UPDATE segments SET parent_id = id", "0 trained"),
        ("DELETE FROM segments WHERE kind = 'prompt'", "not stored"),
        ("DELETE FROM segments WHERE kind = 'completion'", "not stored"),
        (
            "UPDATE segments SET ids = substr(ids, 1, 3) WHERE kind = 'completion'",
            "Segment .*: 3 bytes are not 2 token ids",
        ),
        ("UPDATE calls SET completion_len = 3", "not stored, or not all"),
        ("UPDATE segments SET logprobs = substr(logprobs, 1, 4)", "logprobs"),
        ("UPDATE calls SET version_spans = '[[0, 1, 0]]'", "Version spans cover"),
        (
            (
                "UPDATE calls SET completion_segment = (SELECT id FROM segments WHERE kind = 'completion' "
                "LIMIT "
                "1)"
            ),
            "same completion",
        ),
    ],
)
def test_contradicting_tokens_are_refused(recording, database, statement, words):
    rollout_id, session = rollout(recording)
    session.call([1, 2], versions=[0, 0])
    session.call([1, 2], versions=[0, 0])
    raw = sqlite3.connect(database)
    raw.executescript(statement)
    raw.close()
    with pytest.raises(TraceError, match=words):
        read(recording, rollout_id)


def test_a_thousand_turns_are_read_at_once(recording):
    rollout_id, session = rollout(recording)
    last = None
    for _ in range(1000):
        last = session.call(3, after=last, versions=[0, 0])
    statements: list[str] = []

    def work(conn):
        event.listen(conn, "before_cursor_execute", lambda *args: statements.append(args[2]))
        return rows_of(conn, rollout_id, group_id="g")

    started = time.perf_counter()
    (row,) = recording.store.read(work).rows
    assert time.perf_counter() - started < 5.0
    assert len(row.ids) == 5000
    assert len(row.turns) == 1000
    assert len(statements) == 3


def test_an_account_that_does_not_close_is_refused():
    with pytest.raises(TraceError, match="1 trained"):
        Trajectory((), (), sampled=3, trained=1)


def test_a_row_with_unequal_arrays_or_an_unsampled_logprob_is_refused():
    ids, mask, none = np.zeros(2, np.int32), np.zeros(2, np.int32), np.zeros(2, np.float32)
    with pytest.raises(TraceError, match="differ in length"):
        Row("r", "g", ids, mask[:1], none, ids)
    with pytest.raises(TraceError, match="not sampled"):
        Row("r", "g", ids, mask, none - 1, ids)


CALLS = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.integers(1, 3),
        st.integers(0, 4),
        st.sampled_from(["policy", "policy", "policy", "side", "compaction"]),
        st.sampled_from(["committed", "acknowledged", "undelivered", "aborted"]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CALLS)
def test_every_sampled_token_is_trained_once_or_excluded(recording, plan):
    """Invariants 1, 2 and 3 of any forest."""
    rollout_id, session = rollout(recording)
    wanted: dict[str, list[int]] = {}
    for parent, added, sampled, kind, status in plan:
        after = session.calls[parent] if parent < len(session.calls) else None
        versions = [session.random.randrange(3) for _ in range(sampled)]
        wanted[session.call(added, after=after, versions=versions, kind=kind, status=status)] = versions
    found = read(recording, rollout_id)
    paths = [session.forests[None].ids(segment.id) for segment in session.forests[None].segments.values()]
    seen: dict[str, int] = {}
    for row in found.rows:
        assert row.ids.tolist() in paths
        assert row.mask[-1] == 1
        assert not row.logprobs[row.mask == 0].any()
        for turn in row.turns:
            masked = row.mask[turn.start : turn.end]
            assert masked.min() == masked.max()
            if masked[0]:
                assert row.versions[turn.start : turn.end].tolist() == wanted[turn.call_id]
                seen[turn.call_id] = seen.get(turn.call_id, 0) + 1
    excluded = {item.call_id for item in found.exclusions}
    assert set(seen.values()) <= {1}
    assert excluded.isdisjoint(seen)
    assert excluded | set(seen) == {call for call, versions in wanted.items() if versions}
    assert found.sampled == sum(map(len, wanted.values()))


def experts(start: int, tokens: int, first: int) -> RoutedExperts:
    return RoutedExperts(start, (first + np.arange(tokens * 4, dtype=np.uint8)).reshape(tokens, 2, 2))


def with_experts(recording, rollout_id) -> tuple[Row, ...]:
    return recording.store.read(lambda conn: rows_of(conn, rollout_id, group_id="g", with_experts=True)).rows


def test_the_experts_of_a_row_are_those_of_its_own_calls(recording):
    """Branches share the experts of their common calls; a call without any leaves a gap."""
    rollout_id, session = rollout(recording)
    root = session.call(4, versions=[0, 0, 0], experts=experts(0, 6, first=0))
    session.call(2, after=root, versions=[0], experts=experts(6, 3, first=100))
    silent = session.call(3, after=root, versions=[0, 0])
    session.call(1, after=silent, versions=[0], experts=experts(11, 2, first=200))
    session.call(5, versions=[0])
    first, second, third = with_experts(recording, rollout_id)
    assert (len(first.ids), len(second.ids), third.experts) == (10, 14, None)
    assert first.experts.recorded.tolist() == [True] * 9 + [False]
    assert first.experts.experts[:9, 0, 0].tolist() == [0, 4, 8, 12, 16, 20, 100, 104, 108]
    assert second.experts.recorded.tolist() == [True] * 6 + [False] * 5 + [True] * 2 + [False]
    assert second.experts.experts[11:13, 0, 0].tolist() == [200, 204]
    assert np.array_equal(second.experts.experts[:6], first.experts.experts[:6])
    assert all(row.experts is None for row in read(recording, rollout_id).rows)


def test_experts_that_do_not_fit_a_row_are_refused(recording):
    rollout_id, session = rollout(recording)
    call = session.call(4, versions=[0, 0], experts=experts(0, 7, first=0))
    with pytest.raises(TraceError, match=f"Rollout {rollout_id}, calls {call}: .* no row of 6 tokens"):
        with_experts(recording, rollout_id)
