import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.batch_rollout.results import pass_at_k, summarise, written
from harnessgym.store.rollout_states import RolloutState


def state(task="a", slot=0, reward=1.0, **values):
    plain = {
        "id": f"{task}{slot}", "run_id": "r", "group_id": "g", "purpose": "rollout", "ordinal": 0, "slot": slot, "attempt": 0,
        "task_set": "s", "task": task, "harness": "h", "sandbox": "process", "seed": 1, "status": "finished",
        "stop_reason": "finished", "cause": None, "verdict": "valid", "detail": None, "latencies": {"run": 1.0 + slot},
        "grading": None, "created_at": 0.0, "started_at": 1.0, "ended_at": 2.0, "calls": 2, "tokens": 10,
        "rewards": {} if reward is None else {"reward": reward}, "continued_by": None,
    }  # fmt: skip
    return RolloutState(**{**plain, **values})


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_choices_of_k_that_hold_a_pass(case):
    samples, passed, k = case
    choices = list(itertools.combinations(range(samples), k))
    counted = sum(any(one < passed for one in choice) for choice in choices) / len(choices)
    assert pass_at_k(samples, passed, k) == pytest.approx(counted)


def test_tasks_count_alike_however_often_they_were_graded_and_what_was_not_graded_is_no_zero():
    lost = {
        "status": "failed",
        "verdict": "infrastructure_error",
        "stop_reason": "sandbox_error",
        "cause": "sandbox_died",
    }
    states = [state("a", slot, float(slot == 0)) for slot in range(4)]
    states += [
        state("b", 0, 1.0),
        state("b", 1, None, **lost),
        state("b", 2, None, **lost),
        state("b", 3, None, **lost),
    ]
    found = summarise(states, 1.0)
    assert (found["rollouts"], found["graded"], found["not_graded"], found["tasks"]) == (8, 5, 3, 2)
    assert found["reward"]["mean"] == found["pass@1"]["mean"] == pytest.approx((0.25 + 1.0) / 2)
    assert found["pass@2"]["mean"] == pytest.approx(0.5), "of task a alone: b was graded once"
    assert found["pass@4"]["mean"] == 1.0
    assert "pass@8" not in found
    assert (found["causes"], found["verdicts"]) == (
        {"sandbox_died": 3},
        {"infrastructure_error": 3, "valid": 5},
    )


def test_a_tampered_rollout_is_a_zero():
    found = summarise([state("a", 0, 0.0, verdict="tampered"), state("a", 1, 1.0)], 1.0)
    assert found["reward"]["mean"] == 0.5


def test_lines_are_json_with_the_rollouts_id():
    (line,) = map(json.loads, written([state("ä", 3, 0.5, attempt=2)]).splitlines())
    assert (line["task"], line["slot"], line["reward"], line["attempts"], line["rollout"]) == (
        "ä",
        3,
        0.5,
        3,
        "ä3",
    )
