"""A batch that arrives in parts makes the step of the whole batch."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.errors import TrainerError
from tests.trainers.test_update import SETTINGS, make_policy, make_rows, split_row
from trainers.losses.normalisation import Constant, denominator
from trainers.optimizer import make_optimizer
from trainers.update import GradientAccumulation, policy_update


def whole(rows, advantages, options):
    policy = make_policy()
    metrics = policy_update(policy, make_optimizer(policy, options), rows, advantages, options)
    return [parameter.grad.clone() for parameter in policy.parameters()], policy.state_dict(), metrics


def in_parts(parts, advantages, options):
    policy = make_policy()
    update = GradientAccumulation(policy, make_optimizer(policy, options), options)
    for rows, values in zip(parts, advantages, strict=True):
        update.add(rows, values)
    metrics = update.step()
    return [parameter.grad.clone() for parameter in policy.parameters()], policy.state_dict(), metrics


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 1000),
    cuts=st.sets(st.integers(1, 5)),
    normalisation=st.sampled_from(["token", "rollout", Constant(length=9)]),
    proximal=st.sampled_from(["behaviour", "current"]),
    tokens=st.sampled_from([1, 30, 10_000]),
)
def test_any_split_into_parts_gives_the_step_and_metrics_of_the_whole(
    seed, cuts, normalisation, proximal, tokens
):
    options = SETTINGS.model_copy(
        update={"normalisation": normalisation, "proximal": proximal, "micro_batch_tokens": tokens}
    )
    rows = make_rows(seed, 6)
    advantages = [float(value) for value in torch.randn(6, generator=torch.Generator().manual_seed(seed))]
    edges = [0, *sorted(cuts), 6]
    spans = [slice(*edge) for edge in pairwise(edges)]
    expected, _, at_once = whole(rows, advantages, options)
    found, _, streamed = in_parts(
        [rows[span] for span in spans], [advantages[span] for span in spans], options
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert streamed.as_dict() == pytest.approx(at_once.as_dict(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("normalisation", ["token", "rollout"])
def test_a_part_without_trained_tokens_counts_as_it_does_in_the_whole(normalisation):
    options = SETTINGS.model_copy(update={"normalisation": normalisation})
    rows = make_rows(5, 3)
    rows[1] = replace(rows[1], mask=np.zeros_like(rows[1].mask), logprobs=np.zeros_like(rows[1].logprobs))
    advantages = [1.0, -0.5, 0.25]
    expected, _, at_once = whole(rows, advantages, options)
    found, _, streamed = in_parts([rows[:1], rows[1:2], rows[2:]], [[1.0], [-0.5], [0.25]], options)
    assert all(
        torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        for ours, theirs in zip(found, expected, strict=True)
    )
    assert (streamed.tokens, streamed.rollouts) == (at_once.tokens, at_once.rollouts)


def test_equal_parts_give_equal_bits():
    rows = make_rows(5, 4)
    parts, advantages = [rows[:1], rows[1:]], [[1.0], [-0.5, 0.25, 2.0]]
    first, second = (in_parts(parts, advantages, SETTINGS)[1] for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_accumulation_that_was_cut_off_leaves_nothing_behind():
    rows = make_rows(5, 4)
    policy = make_policy()
    optimizer = make_optimizer(policy, SETTINGS)
    GradientAccumulation(policy, optimizer, SETTINGS).add(rows[:2], [3.0, -3.0])
    update = GradientAccumulation(policy, optimizer, SETTINGS)
    update.add(rows, [1.0, -0.5, 0.25, 2.0])
    update.step()
    expected = in_parts([rows], [[1.0, -0.5, 0.25, 2.0]], SETTINGS)[1]
    assert all(torch.equal(value, expected[name]) for name, value in policy.state_dict().items())


def test_a_rollout_in_two_parts_and_an_empty_batch_are_refused():
    policy = make_policy()
    update = GradientAccumulation(policy, make_optimizer(policy, SETTINGS), SETTINGS)
    with pytest.raises(TrainerError, match="no trained token"):
        update.step()
    rows = make_rows(5, 1)
    halves = split_row(rows[0], [index % 2 == 0 for index in range(len(rows[0].ids))])
    kept = [half for half in halves if half.mask.any()]
    update.add(kept[:1], [1.0])
    with pytest.raises(TrainerError, match="rollout 0 is in two parts"):
        update.add(kept[:1], [1.0])


@given(st.integers(0, 50), st.integers(1, 5))
def test_denominators_of_parts_add_up(seed, cut):
    rows = make_rows(seed, 6)
    for normalisation in ("token", "rollout"):
        parts = denominator(rows[:cut], normalisation) + denominator(rows[cut:], normalisation)
        assert parts == denominator(rows, normalisation)
