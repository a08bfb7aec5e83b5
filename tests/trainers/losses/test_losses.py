"""Losses: as near to their references as docs/algorithms.md says, their gradients those of what they stand
for.
"""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.registry import load, names
from tests.suites.algorithms.losses import MEASURES
from tests.suites.algorithms.tokens import shares, tokens_of
from trainers.losses.clipped import cispo, clipped_surrogate, dppo_tv, gspo, minpro, ppo, reinforce
from trainers.losses.tokens import Tokens

PAIRS = st.lists(st.tuples(st.floats(-2, 2, width=32), st.floats(-3, 3, width=32)), min_size=1, max_size=16)
SEEDS = st.integers(0, 10_000)


def loss_of(name):
    found = load("loss", name)
    return partial(load("loss", found.function), **found(name=name).arguments)


@pytest.mark.parametrize("name", [*names("loss"), "value"])
def test_a_loss_is_its_reference(name):
    assert MEASURES["loss", name]() < 1e-12


def slope(function, at, index, step=1e-6):
    """Of a function of a vector, in one direction."""
    low, high = at.clone(), at.clone()
    low[index] -= step
    high[index] += step
    return float(function(high) - function(low)) / (2 * step)


def frozen(weight):
    """What a score loss stands for where its weight is what it is."""
    return lambda tokens, x: -(weight(tokens) * tokens.advantages_N * x)


def surrogate(tokens, x, low=0.2, high=0.28):
    return clipped_surrogate(x - tokens.proximal_N, tokens.advantages_N, low, high)


def sequence_surrogate(tokens, x):
    """GSPO's own objective: one ratio a rollout, which every one of its tokens moves."""
    counts = torch.bincount(tokens.rollout_N).double()
    means = torch.zeros_like(counts).index_add_(0, tokens.rollout_N, x - tokens.proximal_N) / counts
    return clipped_surrogate(means[tokens.rollout_N], tokens.advantages_N, 0.1, 0.2)


def total_variation(tokens, x):
    moved = tokens.logprobs_N.detach().exp() - tokens.proximal_N.exp()
    cut = (tokens.advantages_N > 0) & (moved > 0.2) | (tokens.advantages_N < 0) & (moved < -0.2)
    return -(x - tokens.proximal_N).exp() * tokens.advantages_N * ~cut + 0.01 * (x - tokens.proximal_N) ** 2


OBJECTIVES = {
    "ppo": (partial(ppo, clip_high=0.28), surrogate),
    "gspo": (partial(gspo, clip_low=0.1, clip_high=0.2), sequence_surrogate),
    "dppo_tv": (partial(dppo_tv, kl=0.01), total_variation),
    "reinforce": (reinforce, frozen(lambda _: 1.0)),
    "cispo": (partial(cispo, cap=1.5), frozen(lambda tokens: tokens.log_ratio.detach().exp().clamp(max=1.5))),
    "minpro": (
        minpro,
        frozen(
            lambda tokens: (
                (tokens.least_before(tokens.log_ratio.detach(), 0.0) + tokens.log_ratio.detach())
                .exp()
                .clamp(0.8, 1.28)
            )
        ),
    ),
}


SHARED = {"dapo": "ppo", "decoupled_ppo": "ppo"}
"""Losses whose function is that of another."""


def test_no_loss_is_without_an_objective():
    assert set(OBJECTIVES) | set(SHARED) == set(names("loss"))
    assert all(load("loss", one).function == load("loss", other).function for one, other in SHARED.items())


@pytest.mark.parametrize("name", OBJECTIVES)
@given(seed=SEEDS)
def test_gradients_are_finite_differences_of_the_objective(name, seed):
    loss, objective = OBJECTIVES[name]
    tokens = tokens_of(seed)
    weight = shares(tokens, "rollout")
    (found,) = torch.autograd.grad((weight * loss(tokens)).sum(), tokens.logprobs_N)
    at = tokens.logprobs_N.detach()
    for index in range(len(at)):
        expected = slope(lambda x: (weight * objective(tokens, x)).sum(), at, index)
        assert float(found[index]) == pytest.approx(expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("name", names("loss"))
@given(seed=SEEDS, data=st.data())
def test_the_order_of_tokens_and_who_else_is_there_change_no_loss(name, seed, data):
    """Whatever rows a rollout's tokens come in, and whatever micro-batch."""
    tokens = tokens_of(seed)
    loss = loss_of(name)
    expected = loss(tokens).detach()
    order = torch.tensor(data.draw(st.permutations(range(len(expected)))))
    alone = order[tokens.rollout_N[order] == 0]
    for part in (order, alone):
        picked = Tokens(*(getattr(tokens, field)[part] for field in Tokens.__dataclass_fields__))
        torch.testing.assert_close(loss(picked).detach(), expected[part])


@pytest.mark.parametrize("name", names("loss"))
@given(seed=SEEDS)
def test_on_policy_every_loss_has_the_plain_policy_gradient(name, seed):
    tokens = tokens_of(seed, far=0.0)
    (found,) = torch.autograd.grad(loss_of(name)(tokens).sum(), tokens.logprobs_N)
    torch.testing.assert_close(found, -tokens.advantages_N)


@given(PAIRS)
def test_clipped_surrogate_token_by_token(pairs):
    log_ratio, advantages = (torch.tensor(column) for column in zip(*pairs, strict=True))
    expected = []
    for x, advantage in pairs:
        ratio = math.exp(x)
        expected.append(-min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage))
    torch.testing.assert_close(clipped_surrogate(log_ratio, advantages, 0.2, 0.28), torch.tensor(expected))


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [(1.27, 1, True), (1.29, 1, False), (0.5, 1, True), (0.81, -1, True), (0.79, -1, False), (1.9, -1, True)],
)
def test_clip_range_is_asymmetric_and_one_sided(ratio, advantage, moves):
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    clipped_surrogate(log_ratio, torch.tensor([float(advantage)]), 0.2, 0.28).sum().backward()
    assert bool(log_ratio.grad.any()) == moves


def two_rollouts(ratios, probability=0.5, advantage=1.0):
    """Tokens of two rollouts by turns, with these ratios pi / pi_prox."""
    count = len(ratios)
    prox = torch.full((count,), math.log(probability))
    pi = (prox + torch.tensor(ratios).log()).requires_grad_()
    turns = torch.arange(count)
    return Tokens(pi, prox, prox, torch.full((count,), advantage), turns % 2, turns)


def test_minpro_takes_the_least_ratio_before_a_token_of_its_own_rollout():
    tokens = two_rollouts([0.5, 1.1, 2.0, 1.2, 1.0, 0.9, 3.0, 1.0])
    minpro(tokens, clip_low=0.99, clip_high=9.0).sum().backward()
    expected = [0.5, 1.1, 0.5 * 2.0, 1.1 * 1.2, 0.5 * 1.0, 1.1 * 0.9, 0.5 * 3.0, 0.9 * 1.0]
    torch.testing.assert_close(-tokens.logprobs_N.grad, torch.tensor(expected))


def test_gspo_cuts_a_rollout_whole_and_cispo_none():
    tokens = two_rollouts([1.5, 1.0, 1.0, 1.0])
    (found,) = torch.autograd.grad(gspo(tokens).sum(), tokens.logprobs_N)
    assert found[[0, 2]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(found[[1, 3]], torch.tensor([-1.0, -1.0]))
    (found,) = torch.autograd.grad(cispo(tokens, cap=1.2).sum(), tokens.logprobs_N)
    torch.testing.assert_close(found, -torch.tensor([1.2, 1.0, 1.0, 1.0]))


@pytest.mark.parametrize(
    ("ratio", "probability", "advantage", "moves"),
    [
        (10, 0.01, 1, True),
        (1.5, 0.5, 1, False),
        (0.5, 0.5, -1, False),
        (0.5, 0.5, 1, True),
        (0.1, 0.01, -1, True),
    ],
)
def test_dppo_cuts_by_probability_and_not_by_ratio(ratio, probability, advantage, moves):
    tokens = two_rollouts([float(ratio)], probability, float(advantage))
    dppo_tv(tokens).sum().backward()
    assert bool(tokens.logprobs_N.grad.any()) == moves


@pytest.mark.parametrize("loss", [ppo, dppo_tv])
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_a_ratio_beyond_float32_leaves_loss_and_gradient_finite(loss, advantage):
    now = torch.tensor([-0.01], requires_grad=True)
    then = torch.tensor([-120.0])
    found = loss(
        Tokens(now, then, then, torch.tensor([advantage]), torch.zeros(1).long(), torch.zeros(1).long())
    )
    found.sum().backward()
    assert found.isfinite().all()
    assert now.grad.isfinite().all()
    assert advantage < 0 or not now.grad.any()
