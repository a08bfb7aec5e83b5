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

_CLOSE = 1e-4
"""Largest difference of log-probabilities at which results count as the same, as a share of their range.
float32 rounds to about 1e-6 of it; a wrong cache may change a model of random weights by 1e-4 of it."""
_ROUGH = 0.05
"""The same for weights in lower precision, where only gross mistakes show."""
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

    def alone(self) -> str:
        """Rows by themselves, token by token."""
        return self._reason(self._step)

    def continued(self) -> str:
        """Several tokens behind a copied cache."""
        return self._reason(self._continue)

    def together(self) -> str:
        """Rows of different lengths in one batch, which then leave it."""
        return self._reason(self._decode_together)

    def _reason(self, test: Callable[[], None]) -> str:
        try:
            test()
        except CacheDiffers as difference:
            return str(difference)
        except FAILURES as error:
            return f"its cache cannot be used so ({error})"
        return ""

    def _step(self) -> None:
        for ids in self._rows():
            context = RowContext([])
            self._compare(context, self._runner.append(context, ids[:-_STEPS]))
            for token in ids[-_STEPS:]:
                self._compare(context, self._runner.append(context, [token]))

    def _continue(self) -> None:
        for ids in self._rows():
            context = RowContext([])
            self._runner.append(context, ids[:-_STEPS])
            assert context.cache is not None
            other = RowContext(list(context.ids), copied(context.cache))
            self._compare(other, self._runner.append(other, ids[-_STEPS:]))
            self._compare(context, self._runner.append(context, ids[-1:]))

    def _decode_together(self) -> None:
        rows = self._rows()
        contexts = [RowContext([]) for _ in rows]
        for context, ids in zip(contexts, rows, strict=True):
            self._runner.append(context, ids[: 1 - _STEPS])
        for step in range(1 - _STEPS, 0):
            tokens = {context: ids[step] for context, ids in zip(contexts, rows, strict=True)}
            for context, hidden_E in self._runner.append_together(contexts, tokens).items():
                self._compare(context, hidden_E[None])
        for context, ids in zip(contexts, rows, strict=True):
            self._compare(context, self._runner.append(context, ids[:1]))

    def _compare(self, context: RowContext, hidden_TE: Tensor) -> None:
        """Raises `CacheDiffers` if a row's last hidden state predicts other tokens than without a cache."""
        policy = self._runner.policy
        whole_TE = self._runner.whole(context.ids)
        found_V, expected_V = (policy.logits(each[-1:])[0] for each in (hidden_TE, whole_TE))
        if not self._close(found_V, expected_V):
            difference = self._distance(found_V, expected_V)
            raise CacheDiffers(f"with its cache log-probabilities differ by {difference:.2g} nats")

    def _close(self, found_V: Tensor, expected_V: Tensor) -> bool:
        exact = next(self._runner.policy.parameters()).dtype == torch.float32
        spread = float(expected_V.max() - expected_V.min())
        return self._distance(found_V, expected_V) <= (_CLOSE if exact else _ROUGH) * spread

    @staticmethod
    def _distance(found_V: Tensor, expected_V: Tensor) -> float:
        return float((found_V.float().log_softmax(-1) - expected_V.float().log_softmax(-1)).abs().max())

    def _rows(self) -> list[list[int]]:
        """Two rows of different lengths, of which one reaches beyond a narrow window."""
        window = self._runner.cache.croppable
        sizes = (6 + _STEPS, 11 + _STEPS + (int(window) if window <= _SEEN else 0))
        most = min(self._runner.policy.context, self._runner.cache.length)
        draw = np.random.default_rng(0)
        return [draw.integers(0, self._runner.policy.vocabulary, min(size, most)).tolist() for size in sizes]
