"""Scoring: how likely the policy under training finds tokens that it did not sample."""

from collections.abc import Sequence

import numpy as np
import torch

from harnessgym.tokens import IdArray
from trainers.packing import micro_batches, pack
from trainers.policy import Policy
from trainers.update_settings import UpdateSettings


@torch.no_grad()
def mean_logprobs(
    policy: Policy, texts: Sequence[IdArray], tails: Sequence[int], settings: UpdateSettings
) -> list[float]:
    """The mean logprob of the last `tails[i]` tokens of `texts[i]`, at the sampling temperature; 0 for none
    of them.

    Of a text that is longer than the policy can read the beginning is left out.
    """
    texts = [text[-policy.config.max_position_embeddings :] for text in texts]
    asked = [index for index, tail in enumerate(tails) if tail]
    out = [0.0] * len(texts)
    for batch in micro_batches([[texts[index]] for index in asked], settings.micro_batch_tokens):
        part = [asked[place] for place in batch]
        packed = pack([texts[index] for index in part], policy.cos.device)
        masks = [_tail(len(texts[index]), tails[index]) for index in part]
        logprobs_M = policy.logprobs(packed, *packed.trained(masks), settings.temperature).cpu()
        for index, own in zip(
            part, torch.split(logprobs_M, [int(mask.sum()) for mask in masks]), strict=True
        ):
            out[index] = float(own.double().mean())
    return out


def _tail(length: int, tail: int) -> IdArray:
    """A mask of the last tokens, without the first of all, which nothing predicts."""
    place = np.arange(length)
    return ((place >= length - tail) & (place > 0)).astype(np.int32)
