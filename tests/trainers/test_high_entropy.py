"""Which turns are kept, and that leaving others out takes their gradient and nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore
from harnessgym.store.rollouts import GroupMember, GroupRow
from harnessgym.traces.trajectories import Row, Turn
from harnessgym.traces.verification.verify import verify
from tests.trainers.recorded_run import learner_of, make_run, record_groups, save_model
from trainers.advantages.estimator import OnRewards
from trainers.advantages.group_relative import grpo
from trainers.batch import LoadedGroup, group_part, kept_turns, surest_masked, turn_entropies
from trainers.losses.normalisation import denominator


def row(*turns, rollout="r"):
    """Each turn is the logprobs of its tokens; a prompt token comes before each."""
    logprobs, made = list[float](), list[Turn]()
    for number, turn in enumerate(turns):
        logprobs.append(0.0)
        made.append(Turn(len(logprobs), len(logprobs) + len(turn), f"{rollout}{number}", ""))
        logprobs += turn
    found = np.array(logprobs, np.float32)
    mask = (found != 0).astype(np.int32)
    return Row(rollout, "g", np.zeros(len(found), np.int32), mask, found, mask - 1, tuple(made))


def test_the_entropy_of_a_turn_is_the_mean_of_what_was_trained_of_it():
    found = turn_entropies(row([-1.0, -3.0], [-0.5, 0.0], [0.0]))
    assert found == [2.0, 0.5, None]


def test_the_surest_fifth_of_a_groups_turns_is_left_out_wherever_they_are():
    rows = [row([-1.0], [-0.1, -0.1], [-2.0]), row([-3.0], [-4.0])]
    kept = kept_turns(rows, 0.8)
    assert [values.tolist() for values in kept] == [[1, 1, 1, 0, 0, 1, 1], [1, 1, 1, 1]]
    assert all(values.all() for values in kept_turns(rows, 1.0))


@given(
    entropies=st.lists(
        st.lists(st.floats(0.01, 9).map(lambda x: round(x, 3)), min_size=1, max_size=4),
        min_size=1,
        max_size=4,
    ),
    share=st.floats(0.05, 1),
)
def test_at_least_the_share_is_kept_and_never_a_surer_turn_before_another(entropies, share):
    rows = [row(*[[-value] for value in own]) for own in entropies]
    kept = [
        (value, bool(values[turn.start]))
        for own, values, each in zip(entropies, kept_turns(rows, share), rows, strict=True)
        for value, turn in zip(own, each.turns, strict=True)
    ]
    assert sum(keep for _, keep in kept) >= share * len(kept) - 1
    assert min(value for value, keep in kept if keep) >= max(
        (value for value, keep in kept if not keep), default=0.0
    )


def test_left_out_turns_have_advantage_zero_in_the_step_and_in_the_ledger_and_denominators_stay():
    rows = ((row([-1.0], [-0.1, -0.1], [-2.0], rollout="a"),), (row([-3.0], [-4.0], rollout="b"),))
    members = tuple(GroupMember(name, slot, float(slot), "valid") for slot, name in enumerate("ab"))
    group = LoadedGroup(GroupRow("g", 0, "t", 0, 2, members), rows, ())
    advantages = OnRewards(grpo)(group.scored)
    whole, part = (group_part(group, advantages, 0, VersionChain(()), kept) for kept in (1.0, 0.8))
    assert [np.count_nonzero(np.broadcast_to(values, own.ids.shape) * own.mask) for values, own in
            zip(part.advantages, part.rows, strict=True)] == [2, 2]  # fmt: skip
    said = {(item.call_id, item.value != 0) for entry in part.trained for item in entry.advantages}
    assert said == {("a0", True), ("a1", False), ("a2", True), ("b0", True), ("b1", True)}
    for normalisation in ("token", "rollout"):
        assert denominator(part.rows, normalisation) == denominator(whole.rows, normalisation)
    assert [entry.tokens for entry in part.trained] == [entry.tokens for entry in whole.trained]


def test_whatever_an_estimator_gave_is_zero_in_the_surest_turns_and_dropped_rollouts_are_not_compared():
    """An array, a number, and a rollout that is dropped, whose turns would be the surest."""
    rows = (
        (row([-1.0], [-0.1, -0.1], rollout="a"),),
        (row([-3.0], rollout="b"),),
        (row([-0.01], rollout="c"),),
        (),
    )
    given = np.array([9.0, 1.0, 9.0, 2.0, 3.0], np.float32)
    found = surest_masked(rows, [[given], [-2.0], None, []], 0.7)
    assert found[0][0].tolist() == [9.0, 1.0, 9.0, 0.0, 0.0]
    assert found[1][0].tolist() == [-2.0, -2.0]
    assert found[2:] == [None, []]
    assert {values.dtype for values in (found[0][0], found[1][0])} == {np.dtype(np.float32)}


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_with_part_of_its_turns_is_in_the_books_as_every_other(tmp_path, stream):
    folder = make_run(tmp_path / "run", save_model(tmp_path / "model"), steps_kept=0.5, stream=stream)
    record_groups(folder, range(2), rewards={0: [1.0, 0.0, 0.0], 1: [1.0, 0.0, 0.0]})
    with TraceStore.open(folder.store_url()) as store:
        learner = learner_of(folder, store)
        learner.train_step(learner.arriving())
        learner.settle()
        assert verify(store).findings == ()
        query = "SELECT value = 0, count(*) FROM advantages GROUP BY 1 ORDER BY 1"
        assert store.read(lambda conn: conn.exec_driver_sql(query).all()) == [(0, 4), (1, 2)]
