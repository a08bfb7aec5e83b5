"""References for losses: TRL's own code where TRL has it, else the formula written down a second time,
token by token.
"""

import math
from functools import partial

import numpy as np
import torch

from harnessgym.traces.trajectories import Row
from tests.suites.algorithms.tokens import SEEDS, shares, tokens_of, trl, value_and_gradient
from trainers.corrections.importance_sampling import mis
from trainers.losses.clipped import cispo, dppo_tv, gspo, minpro, ppo, reinforce
from trainers.losses.normalisation import Constant, token_weights
from trainers.value_function import value_loss


def ours(loss, tokens, by, weights=1.0):
    """A loss's mean and its gradient."""
    return value_and_gradient((shares(tokens, by) * weights * loss(tokens)).sum(), tokens.logprobs_N)


def against_trl(loss, by, **options):
    """The greatest difference of values and gradients."""
    worst = 0.0
    for seed in SEEDS:
        tokens = tokens_of(seed)
        worst = max(worst, float((ours(loss, tokens, by) - trl(tokens, **options)).abs().max()))
    return worst


def by_token(loss, slope, proximal="behaviour", weight=None):
    """The greatest difference from values and slopes that `slope(tokens, index)` gives token by token, as
    Python floats.
    """
    worst = 0.0
    for seed in SEEDS:
        tokens = tokens_of(seed, proximal=proximal)
        found = [slope(tokens, index) for index in range(len(tokens.rollout_N))]
        count = len(found)
        expected = (
            torch.tensor(
                [sum(value for value, _ in found), *(each for _, each in found)], dtype=torch.float64
            )
            / count
        )
        worst = max(
            worst,
            float(
                (ours(loss, tokens, "token", 1.0 if weight is None else weight(tokens)) - expected)
                .abs()
                .max()
            ),
        )
    return worst


def numbers(tokens, index):
    """log pi, log mu, log pi_prox and A of a token."""
    return (
        float(each[index])
        for each in (tokens.logprobs_N.detach(), tokens.behaviour_N, tokens.proximal_N, tokens.advantages_N)
    )


def a_decoupled_ppo(tokens, index):
    pi, mu, prox, advantage = numbers(tokens, index)
    rho, weight = math.exp(pi - prox), math.exp(prox - mu)
    if weight > 5.0:
        return 0.0, 0.0
    clipped = min(max(rho, 0.8), 1.2)
    if rho * advantage <= clipped * advantage:
        return -weight * rho * advantage, -weight * rho * advantage
    return -weight * clipped * advantage, 0.0


def a_dppo_tv(tokens, index, kl=0.01):
    pi, mu, _, advantage = numbers(tokens, index)
    rho, moved = math.exp(pi - mu), math.exp(pi) - math.exp(mu)
    outside = (advantage > 0 and moved > 0.2) or (advantage < 0 and moved < -0.2)
    gradient = 0.0 if outside else -rho * advantage
    return gradient + kl * math.log(rho) ** 2, gradient + 2 * kl * math.log(rho)


def a_reinforce(tokens, index):
    pi, _, _, advantage = numbers(tokens, index)
    return -advantage * pi, -advantage


def a_minpro(tokens, index):
    pi, mu, _, advantage = numbers(tokens, index)
    earlier = [
        math.exp(float(tokens.logprobs_N.detach()[other]) - float(tokens.behaviour_N[other]))
        for other in range(len(tokens.rollout_N))
        if tokens.rollout_N[other] == tokens.rollout_N[index] and tokens.time_N[other] < tokens.time_N[index]
    ]
    weight = min(max(min(earlier, default=1.0) * math.exp(pi - mu), 0.8), 1.28)
    return -weight * advantage * pi, -weight * advantage


def measure_value() -> float:
    """Value and slope of every token, with values that moved towards their targets and away, and some that
    did not.
    """
    worst, clip = 0.0, 0.4
    for seed in SEEDS:
        values_N, targets_N, old_N = torch.randn(
            3, 40, generator=torch.Generator().manual_seed(seed)
        ).double()
        values_N[::8] = old_N[::8]
        leaf_N = values_N.clone().requires_grad_()
        loss_N = value_loss(leaf_N, targets_N, old_N, clip)
        (slopes_N,) = torch.autograd.grad(loss_N.sum(), leaf_N)
        for token in range(40):
            value, target, old = (float(each[token]) for each in (values_N, targets_N, old_N))
            expected, slope = (value - target) ** 2 / 2, value - target
            if abs(value - old) > clip:
                near = old + math.copysign(clip, value - old)
                if abs(near - target) > abs(value - target):
                    expected, slope = (near - target) ** 2 / 2, 0.0
            worst = max(
                worst, abs(float(loss_N.detach()[token]) - expected), abs(float(slopes_N[token]) - slope)
            )
    return worst


def constant_against_trl():
    """The clipped surrogate with the weights that a step gives its tokens, rollout after rollout."""
    worst = 0.0
    for seed in SEEDS:
        tokens = tokens_of(seed)
        zeros = [np.zeros(int(count), np.int32) for count in torch.bincount(tokens.rollout_N)]
        rows = [Row(f"r{at}", "g", own, own + 1, own.astype(np.float32), own) for at, own in enumerate(zeros)]
        weights_N = torch.from_numpy(np.concatenate(token_weights(rows, Constant(length=11)))).double()
        found = value_and_gradient((weights_N * ppo(tokens)).sum(), tokens.logprobs_N)
        worst = max(
            worst, float((found - trl(tokens, loss_type="dr_grpo", max_completion_length=11)).abs().max())
        )
    return worst


GSPO = {"importance_sampling_level": "sequence", "epsilon_low": 0.1, "epsilon_high": 0.2}
MEASURES = {
    ("loss", "ppo"): partial(against_trl, ppo, "rollout"),
    ("loss", "dapo"): partial(
        against_trl, partial(ppo, clip_high=0.28), "token", loss_type="dapo", epsilon_high=0.28
    ),
    ("loss", "gspo"): partial(against_trl, partial(gspo, clip_low=0.1, clip_high=0.2), "rollout", **GSPO),
    ("loss", "cispo"): partial(
        against_trl, partial(cispo, cap=1.5), "token", loss_type="cispo", epsilon_high=1.5
    ),
    ("loss", "decoupled_ppo"): partial(by_token, ppo, a_decoupled_ppo, "other", partial(mis, cap=5.0)),
    ("loss", "dppo_tv"): partial(by_token, partial(dppo_tv, kl=0.01), a_dppo_tv),
    ("loss", "reinforce"): partial(by_token, reinforce, a_reinforce),
    ("loss", "minpro"): partial(by_token, minpro, a_minpro),
    ("loss", "value"): measure_value,
    ("loss", "normalisation = constant"): constant_against_trl,
}
