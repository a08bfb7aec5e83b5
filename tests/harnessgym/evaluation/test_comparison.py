"""Scores and comparisons of rollouts, against what is counted by hand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.evaluation.comparison import compare, compare_rewards, score
from harnessgym.store.rollout_states import RolloutState

LOST = {"status": "failed", "verdict": "infrastructure_error", "cause": "sandbox_died"}
MEANS = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=8)


def state(task, slot, reward, **values):
    plain = {
        "id": f"{task}{slot}", "run_id": "r", "group_id": "g", "purpose": "rollout", "ordinal": 0, "slot": slot, "attempt": 0,
        "task_set": "s", "task": task, "harness": "h", "sandbox": "process", "seed": 1, "status": "finished",
        "stop_reason": "finished", "cause": None, "verdict": "valid", "detail": None, "latencies": {}, "grading": None,
        "created_at": 0.0, "started_at": 1.0, "ended_at": 2.0, "calls": 2, "tokens": 10,
        "rewards": {} if reward is None else {"reward": reward}, "continued_by": None,
    }  # fmt: skip
    return RolloutState(**{**plain, **values})


def rollouts(**by_task):
    """`rollouts(a=[1, None])`: rewards by task, None for a rollout that could not be graded."""
    return [
        state(task, slot, None if reward is None else float(reward), **(LOST if reward is None else {}))
        for task, rewards in by_task.items()
        for slot, reward in enumerate(rewards)
    ]


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=2, max_size=6), st.integers(1, 4))
def test_pass_at_k_is_the_mean_over_tasks_of_the_choices_that_hold_a_pass(passed, k):
    found = score(rollouts(**{f"t{at}": each for at, each in enumerate(passed)}), k)
    shares = []
    for each in passed:
        choices = list(itertools.combinations(each, k))
        shares.append(sum(map(any, choices)) / len(choices))
    assert found.pass_at[k].mean == pytest.approx(sum(shares) / len(shares))
    assert found.pass_at[1].mean == pytest.approx(found.reward.mean)
    assert found.pass_at[1].mean <= found.pass_at[k].mean + 1e-9


def test_what_was_not_graded_is_no_zero_and_is_counted():
    found = score([*rollouts(a=[1, 1], b=[0, None]), state("c", 0, None, tokens=900, **LOST)], 2)
    told = found.as_json()
    assert (told["rollouts"], told["graded"], told["not_graded"]) == (5, 3, 2)
    assert told["reward"]["mean"] == told["pass@1"]["mean"] == 0.5
    assert told["pass@1"]["tasks"] == 2
    assert (told["pass@2"]["mean"], told["pass@2"]["tasks"]) == (1.0, 1)
    assert told["causes"] == {"sandbox_died": 2}
    assert told["tokens_per_rollout"] == 10.0


def test_with_one_sample_there_is_one_pass_at_1():
    assert list(score(rollouts(a=[1], b=[0]), 1).pass_at) == [1]


def test_without_a_grade_there_are_no_numbers():
    told = score(rollouts(a=[None]), 1).as_json()
    assert (told["reward"]["mean"], told["tokens_per_rollout"], told["graded"]) == (None, None, 0)


def test_a_sure_gain_is_one_and_its_opposite_a_loss():
    before = rollouts(**{f"t{at}": [0, 0] for at in range(20)})
    after = rollouts(**{f"t{at}": [1, at % 2] for at in range(20)})
    found = compare(before, after)
    assert (found.better, found.worse, found.equal, found.left_out) == (20, 0, 0, 0)
    assert found.difference.mean == pytest.approx(0.75)
    assert found.gained
    assert found.verdict == "better"
    back = compare(after, before)
    assert not back.gained
    assert back.verdict == "worse"


def test_tasks_that_one_was_not_graded_on_are_left_out_of_both_and_counted():
    found = compare(rollouts(a=[1], b=[0], c=[None], d=[0]), rollouts(a=[1], b=[1], c=[1], d=[None]))
    assert (found.tasks, found.better, found.equal, found.left_out) == (2, 1, 1, 2)
    assert found.difference.mean == 0.5
    assert found.as_json()["left_out"] == 2


def test_an_interval_that_holds_zero_shows_no_improvement():
    found = compare_rewards({"a": 0.0, "b": 1.0, "c": 0.0}, {"a": 1.0, "b": 0.0, "c": 1.0}, {"a", "b", "c"})
    assert found.difference.mean > 0
    assert not found.gained
    assert found.verdict == "no improvement shown"
    same = compare_rewards({"a": 1.0, "b": 0.5}, {"a": 1.0, "b": 0.5}, {"a", "b"})
    assert (same.equal, same.gained, same.verdict) == (2, False, "no improvement shown")


def test_one_task_shows_nothing():
    found = compare_rewards({"a": 0.0}, {"a": 1.0}, {"a"})
    assert (found.better, found.gained, found.verdict) == (1, False, "too few tasks")
    assert compare_rewards({}, {"a": 1.0}, {"a"}).verdict == "too few tasks"


@given(MEANS, MEANS, st.sets(st.sampled_from("xyz")))
def test_every_task_is_compared_or_left_out(before, after, lost):
    asked = {*before, *after, *lost}
    found = compare_rewards(before, after, asked)
    assert found.tasks + found.left_out == len(asked)
    assert found.tasks == len(before.keys() & after.keys())
    opposite = compare_rewards(after, before, asked)
    assert (opposite.better, opposite.worse, opposite.equal) == (found.worse, found.better, found.equal)
    assert not (found.gained and opposite.gained)
