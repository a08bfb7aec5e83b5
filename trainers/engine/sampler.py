"""Sampling from a batch of logits by inverse transform.

Each row brings its own uniform number, so the token it gets depends on its own logits and its own stream
alone, whatever else is in the batch. Logprobs are those of the distribution that was sampled: temperature,
then top-k, then top-p, renormalised.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

DRAWS = 64
"""Uniform numbers drawn at a time from a sequence's stream."""


@dataclass(frozen=True, slots=True)
class StepSamples:
    """Tokens [B], their logprobs [B], and the probabilities of all tokens (0 outside the kept set)."""

    tokens: Tensor
    logprobs: Tensor
    probs_BV: Tensor


def truncate(scores_BV: Tensor, top_k_B: Tensor, top_p_B: Tensor) -> Tensor:
    """Scores with everything outside top-k (0: all), then outside top-p of what is left, at -inf.

    A set is cut at the score of its last member, so tokens that tie with it stay: which ones are kept does
    not depend on an order among equals.
    """
    ordered_BV = scores_BV.sort(dim=-1, descending=True).values
    rank_V = torch.arange(scores_BV.shape[-1])
    last_B = torch.where(top_k_B > 0, top_k_B, len(rank_V)).clamp(max=len(rank_V)) - 1
    kth_B1 = ordered_BV.gather(1, last_B[:, None])
    ordered_BV = ordered_BV.masked_fill(ordered_BV < kth_B1, float("-inf"))
    before_BV = ordered_BV.softmax(-1).cumsum(-1) - ordered_BV.softmax(-1)
    kept_B = ((before_BV < top_p_B[:, None]) & (ordered_BV >= kth_B1)).sum(-1).clamp(min=1)
    kept_B = torch.where(top_p_B < 1.0, kept_B, (ordered_BV >= kth_B1).sum(-1))
    floor_B1 = ordered_BV.gather(1, kept_B[:, None] - 1)
    return scores_BV.masked_fill(scores_BV < floor_B1, float("-inf"))


def sample(
    logits_BV: Tensor, temperature_B: Floats, top_k_B: Ints, top_p_B: Floats, uniform_B: Floats
) -> StepSamples:
    """One token per row. A row of temperature 0 gets its likeliest token, with logprob 0."""
    greedy_B = temperature_B == 0.0
    scores_BV = logits_BV.float()
    if (temperature_B != 1.0).any():
        scores_BV = scores_BV / torch.from_numpy(np.where(greedy_B, np.float32(1.0), temperature_B))[:, None]
    cut_B = (top_k_B > 0) | (top_p_B < 1.0)
    if cut_B.any():
        index = torch.from_numpy(np.flatnonzero(cut_B))
        kept = truncate(scores_BV[index], torch.from_numpy(top_k_B)[index], torch.from_numpy(top_p_B)[index])
        scores_BV = scores_BV.index_copy(0, index, kept)
    probs_BV = scores_BV.softmax(-1)
    cumulative_BV = probs_BV.cumsum(-1)
    point_B1 = torch.from_numpy(uniform_B)[:, None] * cumulative_BV[:, -1:]
    tokens = torch.searchsorted(cumulative_BV, point_B1, right=True).clamp_(max=probs_BV.shape[-1] - 1)
    if greedy_B.any():
        tokens = torch.where(torch.from_numpy(greedy_B)[:, None], scores_BV.argmax(-1, keepdim=True), tokens)
    logprobs = probs_BV.gather(1, tokens).log_()
    if greedy_B.any():
        logprobs.masked_fill_(torch.from_numpy(greedy_B)[:, None], 0.0)
    return StepSamples(tokens[:, 0], logprobs[:, 0], probs_BV)
