"""Fidelity recomputed, and the two published builders with the losses they are known for."""

import numpy as np
import pytest

from harnessgym.errors import TraceError
from harnessgym.store.tables import calls as call_table
from harnessgym.traces.divergence import (
    BuiltRow,
    RowSpan,
    SampledCall,
    forest,
    measure,
    per_request,
    prefix_merging,
    sampled_calls,
)
from harnessgym.traces.trajectories import rows_of

END = 9


def call(name, prompt, completion, stopped=True):
    return SampledCall(name, np.array(prompt, np.int32), np.array(completion, np.int32), stopped)


def ids(rows):
    return [row.ids.tolist() for row in rows]


FAITHFUL = [call("a", [1, 2], [3, END]), call("b", [1, 2, 3, END, 4], [5, END])]
STRIPPED = [
    call("a", [1, 2], [7, 3, END]),
    call("b", [1, 2, 3, END, 4], [5, END]),
]  # 7 was reasoning, and is gone


def test_per_request_makes_a_row_per_call_and_trains_each_in_its_context():
    rows = per_request(FAITHFUL)
    assert ids(rows) == [[1, 2, 3, END], [1, 2, 3, END, 4, 5, END]]
    found = measure(rows, FAITHFUL)
    assert (found.rows, found.row_tokens, found.trained, found.wrong_context, found.lost, found.repeated) == (
        2,
        11,
        4,
        0,
        0,
        0,
    )


def test_prefix_merging_joins_a_conversation_that_only_grows():
    rows = prefix_merging(FAITHFUL)
    assert ids(rows) == [[1, 2, 3, END, 4, 5, END]]
    assert rows[0].parts == (RowSpan("a", 2, 4), RowSpan("b", 5, 7))
    found = measure(rows, FAITHFUL)
    assert (found.rows, found.trained, found.wrong_context, found.lost) == (1, 4, 0, 0)


def test_prefix_merging_trains_under_a_context_that_was_never_seen_where_reasoning_was_stripped():
    rows = prefix_merging(STRIPPED)
    assert ids(rows) == [[1, 2, 7, 3, END, 4, 5, END]]
    found = measure(rows, STRIPPED)
    assert (found.rows, found.wrong_context, found.lost) == (1, 2, 0)
    assert measure(per_request(STRIPPED), STRIPPED).wrong_context == 0


def test_prefix_merging_loses_everything_after_an_equal_prompt():
    again = [*FAITHFUL[:1], call("a2", [1, 2], [6, END]), call("b", [1, 2, 6, END, 4], [5, END])]
    found = measure(prefix_merging(again), again)
    assert (found.rows, found.trained, found.lost) == (1, 2, 4)


def test_prefix_merging_closes_a_turn_that_was_cut_off():
    cut = [call("a", [1, 2], [3], stopped=False), call("b", [1, 2, 3, END, 4], [5, END])]
    assert ids(prefix_merging(cut)) == [[1, 2, 3, END, 4, 5, END]]
    assert measure(prefix_merging(cut), cut).wrong_context == 0


def test_prefix_merging_keeps_conversations_apart_and_prefers_the_longer_chain():
    mixed = [
        call("a", [1], [3, END]),
        call("other", [2], [3, END]),
        call("b", [1, 3, END, 4], [5, END]),
        call("c", [1, 3, END, 4, 5, END, 6], [7, END]),
    ]
    rows = prefix_merging(mixed)
    assert [[part.call_id for part in row.parts] for row in rows] == [["a", "b", "c"], ["other"]]
    assert measure(rows, mixed).wrong_context == 0


def test_without_any_end_of_turn_nothing_can_be_joined():
    open_ended = [call("a", [1], [3], stopped=False), call("b", [1, 3, 4], [5], stopped=False)]
    assert [len(row.parts) for row in prefix_merging(open_ended)] == [1]


def test_a_token_trained_twice_is_counted():
    row = per_request(FAITHFUL[:1])[0]
    assert measure([row, row], FAITHFUL[:1]).repeated == 2


def test_a_row_that_trains_other_tokens_than_were_sampled_is_refused():
    row = BuiltRow(np.array([1, 2, 4, END], np.int32), (RowSpan("a", 2, 4),))
    with pytest.raises(TraceError, match="not what call a sampled"):
        measure([row], FAITHFUL)


def test_the_forest_s_rows_of_a_recorded_rollout_are_faithful(recording):
    recording.publish(0)
    group_id, (rollout_id, _) = recording.group()
    session = recording.session(rollout_id)
    first = session.call(5)
    second = session.call(3, after=first)
    session.call(4, after=second)
    session.call(2, after=first)  # a branch
    session.call(6, kind="side")
    trajectory, sampled = recording.store.read(
        lambda conn: (
            found := rows_of(conn, rollout_id, group_id=group_id),
            sampled_calls(conn, rollout_id, found),
        )
    )
    assert [len(call.prompt) for call in sampled] == [5, 12, 20, 11]
    found = measure(forest(trajectory), sampled)
    assert (found.rows, found.sampled, found.trained) == (2, 16, 16)
    assert (found.wrong_context, found.lost, found.repeated) == (0, 0, 0)


def test_a_prompt_that_is_not_what_the_engine_was_given_is_found(recording):
    recording.publish(0)
    group_id, (rollout_id, _) = recording.group()
    call_id = recording.session(rollout_id).call(5)
    recording.store.write(lambda conn: conn.execute(call_table.update().values(prompt_hash="0" * 32)))
    with pytest.raises(TraceError, match=call_id):
        recording.store.read(
            lambda conn: sampled_calls(conn, rollout_id, rows_of(conn, rollout_id, group_id=group_id))
        )
