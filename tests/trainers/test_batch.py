"""Advantages as the ledger gets them: the trained tokens of a row, call by call, in the longest ranges of
one value.
"""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store.advantages import AdvantageRange
from harnessgym.store.rollouts import GroupMember, GroupRow
from harnessgym.traces.trajectories import Row, Turn
from trainers.advantages.estimator import OnRewards
from trainers.advantages.group_relative import grpo
from trainers.batch import LoadedGroup, TakenGroup, group_part, join, make_batch, ranges_of

GRPO = OnRewards(grpo)


def row(mask, *turns):
    mask = np.array(mask, np.int32)
    ids = np.zeros(len(mask), np.int32)
    made = tuple(Turn(start, end, f"c{number}", "") for number, (start, end) in enumerate(turns))
    return Row("r", "g", ids, mask, np.zeros(len(mask), np.float32), ids - 1, made)


def test_one_number_is_one_range_a_call_and_only_where_the_row_trains_it():
    shared = row([0, 0, 0, 1, 1, 1], (1, 2), (3, 6))
    assert ranges_of([shared], 0.5) == (AdvantageRange("c1", 0, 3, 0.5),)
    assert ranges_of([row([0, 1], (1, 2)), row([0, 1, 1], (1, 3))], -1.0) == (
        AdvantageRange("c0", 0, 1, -1.0), AdvantageRange("c0", 0, 2, -1.0),
    )  # fmt: skip
    assert ranges_of([row([0, 0])], 1.0) == ()


def test_neighbouring_calls_keep_ranges_of_their_own():
    assert ranges_of([row([0, 1, 1, 1], (1, 3), (3, 4))], 2.0) == (
        AdvantageRange("c0", 0, 2, 2.0), AdvantageRange("c1", 0, 1, 2.0),
    )  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([0.0, 0.5, -1.0])), min_size=1, max_size=12),
    st.data(),
)
def test_ranges_say_of_each_token_what_the_arrays_say(tokens, data):
    cuts = sorted({0, len(tokens), *data.draw(st.lists(st.integers(0, len(tokens)), max_size=3))})
    turns = list(pairwise(cuts))
    mask, values = zip(*tokens, strict=True)
    found = ranges_of([row(mask, *turns)], np.array(values, np.float32))
    said = {}
    for item in found:
        start = turns[int(item.call_id[1:])][0]
        for at in range(item.start, item.end):
            assert start + at not in said
            said[start + at] = item.value
    assert said == {at: value for at, (trained, value) in enumerate(tokens) if trained}
    pairs = [(one, two) for one, two in pairwise(found) if (one.call_id, one.end) == (two.call_id, two.start)]
    assert all(one.value != two.value for one, two in pairs)


def loaded(name, *versions):
    """A group whose rollouts have one row each, of tokens that these versions sampled; -1 marks those of
    the prompt.
    """
    rows = []
    for own in versions:
        ids = np.array(own, np.int32)
        rows.append((Row("r", name, ids, (ids >= 0).astype(np.int32), np.zeros(len(own), np.float32), ids),))
    members = tuple(GroupMember(f"{name}{slot}", slot, float(slot), "valid") for slot in range(len(versions)))
    return LoadedGroup(GroupRow(name, 3, "task", 0, len(versions), members), tuple(rows), ())


def test_a_batch_tells_which_tokens_are_old_and_which_rollouts_were_carried_over():
    groups = (loaded("a", [-1, 2, 2, 2], [-1, 1, 1, 2]), loaded("b", [-1, 2], [-1, 0, 0, 1, 1]))
    batch = join([group_part(item, GRPO(item.scored), 2, VersionChain(())) for item in groups])
    assert batch.off_policy == 6 / 11
    assert batch.carried == 2
    assert batch.staleness == 2
    assert batch.groups == (TakenGroup("a", 3, 1), TakenGroup("b", 3, 2))
    fresh = make_batch([loaded("a", [-1, 2], [-1, 2])], 2, VersionChain(()), GRPO, None)
    assert (fresh.off_policy, fresh.carried) == (0.0, 0)
