"""References for what reference policies and teachers add: TRL's own code where TRL has it, else the formula
written down a second time.
"""

from functools import partial

import numpy as np
import torch
from torch.nn import functional

from harnessgym.traces.trajectories import Row
from tests.suites.algorithms.tokens import SEEDS, shares, tokens_of, trl, value_and_gradient
from trainers.advantages.guided import divergences, penalised, with_teacher
from trainers.losses.clipped import ppo
from trainers.losses.distillation import full_divergence, top_divergence
from trainers.losses.kl import k1, k2, k3

BETA = 0.3


def k3_against_trl():
    """The clipped surrogate with a KL term, and its gradient, against GRPOTrainer's."""
    worst = 0.0
    for seed in SEEDS:
        tokens = tokens_of(seed)
        reference_N = tokens.behaviour_N + 0.3 * torch.sin(torch.arange(len(tokens.behaviour_N)).double())
        loss_N = ppo(tokens) + BETA * k3(tokens.logprobs_N, reference_N)
        found = value_and_gradient((shares(tokens, "rollout") * loss_N).sum(), tokens.logprobs_N)
        expected = trl(tokens, reference_N=reference_N, beta=BETA)
        worst = max(worst, float((found - expected).abs().max()))
    return worst


def by_token(estimator, slope):
    """The greatest difference from values and slopes as Python floats."""
    worst = 0.0
    for seed in SEEDS:
        tokens = tokens_of(seed)
        found = value_and_gradient(estimator(tokens.logprobs_N, tokens.proximal_N).sum(), tokens.logprobs_N)
        pairs = zip(tokens.logprobs_N.tolist(), tokens.proximal_N.tolist(), strict=True)
        each = [slope(pi, reference) for pi, reference in pairs]
        expected = torch.tensor(
            [sum(value for value, _ in each), *(own for _, own in each)], dtype=torch.float64
        )
        worst = max(worst, float((found - expected).abs().max()))
    return worst


def _distributions(seed, vocabulary=11, positions=7):
    random = torch.Generator().manual_seed(seed)
    scores_MV = 2 * torch.randn(positions, vocabulary, generator=random, dtype=torch.float64)
    teacher_MV = 2 * torch.randn(positions, vocabulary, generator=random, dtype=torch.float64)
    return scores_MV.requires_grad_(), teacher_MV


def full_against_trl():
    """The sum over positions and its gradient, against GKDTrainer's divergence."""
    # Importing it takes seconds, which every process that only collects tests would spend.
    from trl.experimental.gkd import GKDTrainer

    worst = 0.0
    for seed in SEEDS:
        scores_MV, teacher_MV = _distributions(seed)
        found = value_and_gradient(full_divergence(scores_MV, teacher_MV).sum(), scores_MV)
        jsd = GKDTrainer.generalized_jsd_loss(scores_MV[None], teacher_MV[None], beta=1, reduction="sum")
        worst = max(worst, float((found - value_and_gradient(jsd, scores_MV)).abs().max()))
    return worst


def top_against_trl():
    """The sum over positions and its gradient, with the tail that TRL's trainer adds to both."""
    from trl.experimental.server_distillation import server_distillation_trainer as module

    worst = 0.0
    for seed in SEEDS:
        scores_MV, teacher_MV = _distributions(seed)
        teacher = teacher_MV.log_softmax(-1).topk(4, dim=-1)
        own_MK = scores_MV.log_softmax(-1).gather(-1, teacher.indices)
        found = value_and_gradient(top_divergence(own_MK, teacher.values).sum(), scores_MV)
        own_MK = scores_MV.log_softmax(-1).gather(-1, teacher.indices)
        valid = torch.ones_like(own_MK, dtype=torch.bool)
        own, theirs = (module._add_tail_bucket(each, valid)[0] for each in (own_MK, teacher.values))
        expected = functional.kl_div(theirs, own, reduction="sum", log_target=True)
        worst = max(worst, float((found - value_and_gradient(expected, scores_MV)).abs().max()))
    return worst


def _rows(seed):
    random = np.random.default_rng(seed)
    rows, other = [], []
    for index in range(3):
        length = int(random.integers(3, 9))
        mask = random.integers(0, 2, length).astype(np.int32)
        logprobs = np.where(mask == 1, random.uniform(-5, -0.5, length), 0).astype(np.float32)
        rows.append(Row(f"r{index}", "g", mask, mask, logprobs, mask - 1))
        other.append(np.where(mask == 1, random.uniform(-5, -0.5, length), 7).astype(np.float32))
    return rows, other


def rewards_against_trl():
    """RLOOTrainer: `rewards - beta * (per_token_kl * completion_mask).sum(-1)`."""
    worst = 0.0
    for seed in SEEDS:
        rows, other = _rows(seed)
        for row, reference, own in zip(rows, other, divergences(rows, other), strict=True):
            per_token_kl = torch.from_numpy(row.logprobs).double() - torch.from_numpy(reference).double()
            expected = 1.5 - BETA * (per_token_kl * torch.from_numpy(row.mask)).sum(-1)
            worst = max(worst, abs(penalised(1.5, [own], BETA) - float(expected)))
    return worst


def sampled_against_trl():
    """iw_opd: `a_opd = teacher_logprobs - rollout_logprobs` of sampled tokens."""
    worst = 0.0
    for seed in SEEDS:
        rows, other = _rows(seed)
        for row, teacher, own in zip(rows, other, divergences(rows, other), strict=True):
            a_opd = torch.from_numpy(teacher).double() - torch.from_numpy(row.logprobs).double()
            expected = 0.25 + BETA * a_opd * torch.from_numpy(row.mask)
            worst = max(worst, float(np.abs(with_teacher(0.25, own, BETA) - expected.numpy()).max()))
    return worst


MEASURES = {
    ("loss", "kl.estimator = k1"): partial(by_token, k1, lambda pi, ref: (pi - ref, 1.0)),
    ("loss", "kl.estimator = k2"): partial(by_token, k2, lambda pi, ref: ((pi - ref) ** 2 / 2, pi - ref)),
    ("loss", "kl.estimator = k3"): k3_against_trl,
    ("loss", "distillation.tokens = full"): full_against_trl,
    ("loss", "distillation.tokens = K"): top_against_trl,
    ("advantage", "kl.use = reward"): rewards_against_trl,
    ("advantage", "distillation.tokens = sampled"): sampled_against_trl,
}
