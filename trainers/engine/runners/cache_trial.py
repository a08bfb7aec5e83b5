"""Tries on a few tokens whether a model's cache gives what the model computes without it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from trainers.engine.runners.cache_layers import copied
from trainers.engine.runners.row_context import RowContext

if TYPE_CHECKING:
    from trainers.engine.runners.transformers import TransformersRunner

_CLOSE = 1e-2
"""Largest difference of log-probabilities, in nats, at which float32 results count as the same."""
_ROUGH = 0.3
"""The same for weights in lower precision."""
_SEEN = 64
"""Widest sliding window beyond which the rows reach."""
_STEPS = 3
"""Tokens that are computed one by one."""
FAILURES = (AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What models raise that do not take a cache as others do."""


class CacheDiffers(Exception):
    """The cache gives something else."""


class CacheTrial:
    """Each of its tests returns why a way of computing cannot be used; empty if it can."""

    def __init__(self, runner: "TransformersRunner") -> None:
        self._runner = runner
        window = runner.cache.croppable
        beyond = int(window) if window <= _SEEN else 0
        most = min(runner.policy.context, runner.cache.length)
        sizes = [min(size, most) for size in (6 + _STEPS, 11 + _STEPS + beyond)]
        draw = np.random.default_rng(0)
        self._rows = [draw.integers(0, runner.policy.vocabulary, size).tolist() for size in sizes]

    def alone(self) -> str:
        """Rows by themselves, token by token."""
        return self._reason(lambda: [self._step(ids) for ids in self._rows])

    def continued(self) -> str:
        """Several tokens behind a copied cache."""
        return self._reason(lambda: [self._continue(ids) for ids in self._rows])

    def together(self) -> str:
        """Rows of different lengths in one batch, which then leave it."""
        return self._reason(self._decode_together)

    def _reason(self, test: Callable[[], object]) -> str:
        try:
            test()
        except CacheDiffers as difference:
            return str(difference)
        except FAILURES as error:
            return f"its cache cannot be used so ({error})"
        return ""

    def _step(self, ids: list[int]) -> None:
        context = RowContext([])
        self._compare(context, self._runner.extended(context, ids[:-_STEPS]))
        for token in ids[-_STEPS:]:
            self._compare(context, self._runner.extended(context, [token]))

    def _continue(self, ids: list[int]) -> None:
        context = RowContext([])
        self._runner.extended(context, ids[:-_STEPS])
        assert context.cache is not None
        other = RowContext(list(context.ids), copied(context.cache))
        self._compare(other, self._runner.extended(other, ids[-_STEPS:]))
        self._compare(context, self._runner.extended(context, ids[-1:]))

    def _decode_together(self) -> None:
        contexts = [RowContext([]) for _ in self._rows]
        for context, ids in zip(contexts, self._rows, strict=True):
            self._runner.extended(context, ids[: 1 - _STEPS])
        for step in range(1 - _STEPS, 0):
            tokens = {context: ids[step] for context, ids in zip(contexts, self._rows, strict=True)}
            for context, hidden_E in self._runner.decoded(contexts, tokens).items():
                self._compare(context, hidden_E[None])
        for context, ids in zip(contexts, self._rows, strict=True):
            self._compare(context, self._runner.extended(context, ids[:1]))

    def _compare(self, context: RowContext, hidden_TE: Tensor) -> None:
        """Raises `CacheDiffers` if a row's last hidden state predicts other tokens than without a cache."""
        policy = self._runner.policy
        whole_TE = self._runner.whole(context.ids)
        found_V, expected_V = (
            policy.logits(each[-1:]).float().log_softmax(-1) for each in (hidden_TE, whole_TE)
        )
        difference = float((found_V - expected_V).abs().max())
        close = _CLOSE if found_V.dtype == hidden_TE.dtype == torch.float32 else _ROUGH
        if not difference <= close:
            raise CacheDiffers(f"with its cache log-probabilities differ by {difference:.2g} nats")
