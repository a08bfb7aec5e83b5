"""References for corrections: TRL's own code where TRL has it, else the formula written down a second
time.
"""

import math
from functools import partial

import numpy as np
import torch

from tests.suites.algorithms.losses import ours
from tests.suites.algorithms.tokens import SEEDS, padded, tokens_of, trl
from tests.trainers.test_update import make_policy, make_rows
from trainers.advantages.group_relative import reward
from trainers.corrections.baseline import step_size
from trainers.corrections.importance_sampling import icepop, mis, tis
from trainers.corrections.loglinear import loglinear
from trainers.corrections.masks import geometric, opsm
from trainers.losses.clipped import ppo
from trainers.optimizer import make_optimizer
from trainers.proximal import ewma_update
from trainers.update import policy_update
from trainers.update_settings import UpdateSettings


def trl_ratio(tokens, mode, low=None, high=3.0):
    """GRPOTrainer's `vllm_importance_sampling_ratio`: its lines for each mode, which are in no function of
    their own.
    """
    mask = padded(torch.ones_like(tokens.behaviour_N), tokens)
    difference = (padded(tokens.proximal_N, tokens) - padded(tokens.behaviour_N, tokens)) * mask
    if mode.startswith("sequence"):
        difference = difference.sum(dim=-1, keepdim=True)
    ratio = torch.exp(difference)
    if mode.endswith("truncate"):
        return torch.clamp(ratio, min=low, max=high)
    return ratio.masked_fill((ratio < (-math.inf if low is None else low)) | (ratio > high), value=0.0)


def against_trl(correction, modes, **bounds):
    """The greatest difference of the weighted loss and its gradient, for each of its levels."""
    worst = 0.0
    for seed in SEEDS:
        tokens = tokens_of(seed)
        for level, mode in modes.items():
            found = ours(ppo, tokens, "rollout", correction(tokens, level=level))
            expected = trl(tokens, trl_ratio(tokens, mode, **bounds))
            worst = max(worst, float((found - expected).abs().max()))
    return worst


def opsm_against_trl():
    """Off-policy sequence masking in TRL's loss, and by its own function."""
    # Importing it takes ten seconds, which every process that only collects tests would spend.
    from trl.trainer.grpo_trainer import GRPOTrainer

    worst = 0.0
    for seed in SEEDS:
        tokens = tokens_of(seed)
        found = ours(ppo, tokens, "rollout", opsm(tokens, threshold=0.05))
        worst = max(worst, float((found - trl(tokens, off_policy_mask_threshold=0.05)).abs().max()))
        mask = padded(torch.ones_like(tokens.behaviour_N), tokens)
        kept = GRPOTrainer.get_off_policy_mask(
            tokens.advantages_N[tokens.time_N == 0][:, None],
            padded(tokens.logprobs_N, tokens),
            padded(tokens.behaviour_N, tokens),
            mask,
            0.05,
        )
        worst = max(worst, float((padded(opsm(tokens, threshold=0.05), tokens) - kept * mask).abs().max()))
    return worst


def by_rollout(correction, weight):
    """The greatest difference from `weight(log ratios of the rollout)`."""
    worst = 0.0
    for seed in SEEDS:
        tokens = tokens_of(seed, far=0.05)
        found = correction(tokens)
        for rollout in set(tokens.rollout_N.tolist()):
            own = tokens.rollout_N == rollout
            logs = (tokens.proximal_N - tokens.behaviour_N)[own].tolist()
            worst = max(worst, float((found[own] - weight(logs)).abs().max()))
    return worst


def a_geometric(logs):
    return float(0.99 <= math.prod(math.exp(each) for each in logs) ** (1 / len(logs)) <= 1.01)


def loglinear_by_token():
    """Interpolation of probabilities on a log scale, written as a product of powers."""
    worst = 0.0
    for seed in SEEDS:
        tokens = tokens_of(seed)
        ages = torch.from_numpy(np.random.default_rng(seed).integers(0, 6, len(tokens.rollout_N)))
        found = loglinear(tokens.behaviour_N, tokens.logprobs_N.detach(), ages)
        for index, age in enumerate(ages.tolist()):
            mu, pi = (
                math.exp(float(tokens.behaviour_N[index])),
                math.exp(float(tokens.logprobs_N.detach()[index])),
            )
            expected = mu if age <= 1 else mu ** (1 / age) * pi ** (1 - 1 / age)
            worst = max(worst, abs(math.exp(float(found[index])) - expected))
    return worst


def ess_by_rollout():
    """The learning rate of random weights."""
    worst = 0.0
    for seed in SEEDS:
        logs = np.random.default_rng(seed).normal(size=2 + seed)
        settings = UpdateSettings(lr=1e-3, lr_rule={"name": "ess", "target": 0.55})
        weights = [math.exp(each) for each in logs]
        share = sum(weights) ** 2 / sum(each * each for each in weights) / len(weights)
        found = step_size(settings, torch.from_numpy(logs))
        worst = max(worst, abs(found - 1e-3 * math.sqrt(min(1.0, share / 0.55))))
    return worst


def ewma_by_sums():
    """The average of random values, one after the other, against the two sums."""
    worst = 0.0
    for seed in SEEDS:
        values, beta = np.random.default_rng(seed).normal(size=2 + seed % 9), seed / (seed + 2)
        mean, total = values[0], 1.0
        for value in values[1:]:
            total, share = ewma_update(total, beta)
            mean += share * (value - mean)
        powers = beta ** np.arange(len(values) - 1, -1, -1.0)
        worst = max(worst, abs(mean - float((powers * values).sum() / powers.sum())))
    return worst


FLOAT32 = 5e-7
"""Sums of a policy in float32 differ by this from machine to machine."""
VCPO = UpdateSettings(
    lr=1e-3,
    loss="reinforce",
    proximal="current",
    corrections=[{"name": "tis", "level": "sequence", "cap": 8.0}],
    baseline="minimum_variance",
    max_grad_norm=1e9,
)


def gradient_of(rows, advantages, settings):
    """The gradient that a step used, and what it said of itself."""
    policy = make_policy()
    metrics = policy_update(policy, make_optimizer(policy, settings), rows, advantages, settings)
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters()]), metrics


def weight_of(row):
    """VCPO's w of a rollout: the product of its tokens' ratios pi / mu, at most 8."""
    logs = make_policy()(torch.tensor(row.ids[None]).long())[0].detach().double().log_softmax(-1)
    ratios = [
        float(logs[t - 1, row.ids[t]]) - float(row.logprobs[t]) for t in range(1, len(row.ids)) if row.mask[t]
    ]
    return min(math.exp(sum(ratios)), 8.0)


def minimum_variance_rollout_by_rollout():
    """Against the step with advantages R - b, b = sum w^2 |g|^2 R / sum w^2 |g|^2 in float64, g from steps
    on one rollout.
    """
    worst = 0.0
    plain = UpdateSettings(**VCPO.model_dump(exclude={"baseline"}))
    unweighted = plain.model_copy(update={"corrections": ()})
    for seed in range(4):
        rows, rewards = make_rows(seed), np.random.default_rng(seed).integers(0, 2, 5).astype(float).tolist()
        squares = []
        for row in rows:  # a step on one rollout divides by its tokens
            own, _ = gradient_of([row], [1.0], unweighted)
            squares.append(weight_of(row) ** 2 * float((own.double() * int(row.mask.sum())).square().sum()))
        baseline = math.fsum(s * r for s, r in zip(squares, rewards, strict=True)) / math.fsum(squares)
        expected, _ = gradient_of(rows, [reward - baseline for reward in rewards], plain)
        found, metrics = gradient_of(rows, rewards, VCPO)
        worst = max(worst, abs(metrics.baseline - baseline), float((found - expected).abs().max()))
    return max(worst, FLOAT32)


LEVELS = {"token": "token_truncate", "sequence": "sequence_truncate"}
MASKS = {"token": "token_mask", "sequence": "sequence_mask"}
MEASURES = {
    ("advantage", "reward"): lambda: float(
        np.abs(reward([0.5, -1.0, 1.0]) - np.array([0.5, -1.0, 1.0])).max()
    ),
    ("correction", "tis"): partial(against_trl, partial(tis, cap=1.2), LEVELS, high=1.2),
    ("correction", "mis"): partial(against_trl, partial(mis, cap=1.2), MASKS, high=1.2),
    ("correction", "icepop"): partial(
        against_trl, partial(icepop, low=0.7, high=1.4), MASKS, low=0.7, high=1.4
    ),
    ("correction", "geometric"): partial(by_rollout, geometric, a_geometric),
    ("correction", "opsm"): opsm_against_trl,
    ("correction", "proximal = ewma"): ewma_by_sums,
    ("correction", "proximal = loglinear"): loglinear_by_token,
    ("correction", "lr_rule = ess"): ess_by_rollout,
    ("correction", "baseline = minimum_variance"): minimum_variance_rollout_by_rollout,
}
