"""A proximal policy in closed form, between the one that sampled and the current one: no forward pass."""

import numpy as np
import torch
from torch import Tensor

from harnessgym.scheduling.staleness import VersionChain
from harnessgym.tokens import IdArray
from trainers.algorithms import AlgorithmRow

LOGLINEAR = AlgorithmRow(
    "correction", "proximal = loglinear",
    "log pi_prox = log mu + alpha (log pi - log mu), alpha = (v_prox - v) / (v_theta - v), v_prox = v_theta "
    "- 1",
    "A-3PO, arXiv 2512.06547; AReaL", "source", "the formula in float64, token by token",
)  # fmt: skip


def loglinear(behaviour_N: Tensor, current_N: Tensor, age_N: Tensor) -> Tensor:
    """log mu + alpha (log pi - log mu), alpha = (v_prox - v) / (v_theta - v) with v_prox = v_theta - 1, float
    [N] (A-3PO).

    `age_N` is v_theta - v: how many versions ago the token was sampled. For a token of the current version,
    or of the one before, the result is log mu (arXiv 2512.06547, and AReaL's code).
    """
    age_N = age_N.to(behaviour_N.dtype)
    alpha_N = torch.where(age_N > 0, (age_N - 1) / age_N.clamp(min=1), 0.0)
    return behaviour_N + alpha_N * (current_N - behaviour_N)


def ages(versions: IdArray, trained: int, chain: VersionChain) -> IdArray:
    """Staleness of each token, int32 [T], in a step from version `trained`; 0 for tokens that no policy
    sampled (version -1).
    """
    unique, index_T = np.unique(versions, return_inverse=True)
    staleness = [chain.between(trained, int(version)) if version >= 0 else 0 for version in unique]
    return np.array(staleness, dtype=np.int32)[index_T]
