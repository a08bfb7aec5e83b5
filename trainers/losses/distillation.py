"""KL(policy, teacher) at each sampled token's position, over the whole vocabulary or the teacher's likeliest
tokens: the loss of on-policy distillation (arXiv 2306.13649, with its beta at 1).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from harnessgym.tokens import IdArray
from trainers.algorithms import AlgorithmRow
from trainers.policy import Policy, accurate
from trainers.scoring import TopTokens

FULL = AlgorithmRow(
    "loss", "distillation.tokens = full", "c sum_v pi(v) (log pi(v) - log pi_T(v)) at each sampled token's "
                                          "position",
    "GKD, arXiv 2306.13649", "source", "TRL 1.16 `GKDTrainer.generalized_jsd_loss`, `beta = 1`", "token",
    "its mixture of both divergences, and rollouts of the teacher.",
)  # fmt: skip
TOP = AlgorithmRow(
    "loss", "distillation.tokens = K", "that of full over the teacher's K likeliest tokens and one for all "
                                       "others",
    "TRL 1.16 `ServerDistillationTrainer`", "source",
    "its `_add_tail_bucket` and the divergence in float64", "token",
    "its K = 1 and sampled tokens: see advantages.",
)  # fmt: skip

_LEAST_REST = 1e-6
"""Least probability of all other tokens together, below which float32 does not know it."""


def full_divergence(scores_MV: Tensor, teacher_MV: Tensor) -> Tensor:
    """KL(softmax of `scores_MV`, softmax of `teacher_MV`), float [M].

    If a vocabulary is longer, its further entries pad an embedding: they are left out.
    """
    common = min(scores_MV.shape[1], teacher_MV.shape[1])
    own_MV = scores_MV[:, :common].log_softmax(-1)
    teacher_MV = teacher_MV[:, :common].log_softmax(-1)
    return (own_MV.exp() * (own_MV - teacher_MV)).sum(-1)


def top_divergence(logprobs_MK: Tensor, teacher_MK: Tensor) -> Tensor:
    """KL of two distributions of which K log-probabilities each are known, float [M]: all other tokens count
    as one. It is a lower bound of the whole divergence.
    """
    own = torch.cat((logprobs_MK, _rest(logprobs_MK)), dim=-1)
    teacher = torch.cat((teacher_MK, _rest(teacher_MK)), dim=-1)
    return (own.exp() * (own - teacher)).sum(-1)


def _rest(logprobs_MK: Tensor) -> Tensor:
    """Log-probability of all other tokens, [M, 1]."""
    rest = -torch.expm1(logprobs_MK.logsumexp(-1, keepdim=True))
    return rest.clamp(min=_LEAST_REST).log()


class FullComparison:
    """The divergence from a teacher over the whole vocabulary; see `trainers.policy`."""

    def __init__(self, teacher: Policy, temperature: float) -> None:
        self.teacher = teacher
        self.temperature = temperature

    @torch.no_grad()
    def tensors(self, rows: Sequence[IdArray], masks: Sequence[IdArray]) -> tuple[Tensor, ...]:
        """The teacher's hidden states, [M, its hidden size]."""
        return (self.teacher.hidden(rows, masks)[0],)

    def divergence(self, scores_MV: Tensor, *tensors: Tensor) -> Tensor:
        """See `full_divergence`."""
        with torch.no_grad(), self.teacher.autocast():
            logits_MV = accurate(self.teacher.logits(tensors[0]))
        return full_divergence(scores_MV, logits_MV / self.temperature)


class TopComparison:
    """The divergence from a teacher whose likeliest tokens are known; see `trainers.policy`."""

    def __init__(self, tops: Sequence[TopTokens]) -> None:
        """`tops` are those of the rows that are compared, in their order."""
        self.tops = tops

    def tensors(self, rows: Sequence[IdArray], masks: Sequence[IdArray]) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Their ids, int64 [M, K], and the teacher's log-probabilities, float32 [M, K]."""
        chosen = [mask != 0 for mask in masks]
        ids = [top.ids[own] for top, own in zip(self.tops, chosen, strict=True)]
        logprobs = [top.logprobs[own] for top, own in zip(self.tops, chosen, strict=True)]
        return (
            torch.from_numpy(np.concatenate(ids).astype(np.int64)),
            torch.from_numpy(np.concatenate(logprobs)),
        )

    def divergence(self, scores_MV: Tensor, *tensors: Tensor) -> Tensor:
        """See `top_divergence`."""
        ids_MK, teacher_MK = tensors
        own_MK = scores_MV.gather(-1, ids_MK) - scores_MV.logsumexp(-1, keepdim=True)
        return top_divergence(own_MK, teacher_MK)
