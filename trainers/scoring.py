"""Scoring: how likely the policy under training finds tokens that it did not sample."""

from collections.abc import Sequence

import numpy as np
import torch

from harnessgym.tokens import IdArray
from trainers.policy import Policy, token_logprobs
from trainers.update import micro_batches
from trainers.update_settings import UpdateSettings


@torch.no_grad()
def mean_logprobs(policy: Policy, texts: Sequence[IdArray], tails: Sequence[int], settings: UpdateSettings) -> list[float]:
    """The mean logprob of the last `tails[i]` tokens of `texts[i]`, at the sampling temperature; 0 for none of them.

    Of a text that is longer than the policy can read the beginning is left out.
    """
    texts = [text[-policy.config.max_position_embeddings :] for text in texts]
    out = [0.0] * len(texts)
    for part in micro_batches([len(text) for text in texts], settings.micro_batch_tokens):
        padded = np.zeros((len(part), max(len(texts[index]) for index in part)), np.int64)
        for line, index in zip(padded, part, strict=True):
            line[: len(texts[index])] = texts[index]
        ids_BT = torch.from_numpy(padded).to(policy.cos.device)
        logprobs_BT = token_logprobs(policy(ids_BT), ids_BT, settings.temperature).cpu()
        for line_T, index in zip(logprobs_BT, part, strict=True):
            length, tail = len(texts[index]), tails[index]
            out[index] = float(line_T[length - tail : length].double().mean()) if tail else 0.0
    return out
