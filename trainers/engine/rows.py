"""The cache rows of an engine and their contents, and sampling from their logits.

Rows [0, active) belong to running sequences, so decoding reads a slice and copies nothing. The other rows
keep the keys and values of finished sequences as a prefix cache for later prompts. A row's content is valid
for one salt only, and all rows are dropped when the weights change.

Sampling is by inverse transform. Each row brings its own uniform number, so the token it gets depends on
its own logits and its own stream alone, whatever else is in the batch. Logprobs are those of the
distribution that was sampled: temperature, then top-k, then top-p, renormalised.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harnessgym.tokens import IdArray
from trainers.engine.runner import Ints, RowCache

Floats = npt.NDArray[np.float32]

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
    size = scores_BV.shape[-1]
    last_B = torch.where(top_k_B > 0, top_k_B, size).clamp(max=size) - 1
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

    def on_device(array: npt.NDArray[np.generic]) -> Tensor:
        return torch.as_tensor(array, device=logits_BV.device)

    greedy_B = temperature_B == 0.0
    scores_BV = logits_BV.float()
    if (temperature_B != 1.0).any():
        scores_BV = scores_BV / on_device(np.where(greedy_B, np.float32(1.0), temperature_B))[:, None]
    cut_B = (top_k_B > 0) | (top_p_B < 1.0)
    if cut_B.any():
        index = on_device(np.flatnonzero(cut_B))
        kept = truncate(scores_BV[index], on_device(top_k_B[cut_B]), on_device(top_p_B[cut_B]))
        scores_BV = scores_BV.index_copy(0, index, kept)
    probs_BV = scores_BV.softmax(-1)
    cumulative_BV = probs_BV.cumsum(-1)
    point_B1 = on_device(uniform_B)[:, None] * cumulative_BV[:, -1:]
    tokens = torch.searchsorted(cumulative_BV, point_B1, right=True).clamp_(max=probs_BV.shape[-1] - 1)
    if greedy_B.any():
        tokens = torch.where(on_device(greedy_B)[:, None], scores_BV.argmax(-1, keepdim=True), tokens)
    logprobs = probs_BV.gather(1, tokens).log_()
    if greedy_B.any():
        logprobs.masked_fill_(on_device(greedy_B)[:, None], 0.0)
    return StepSamples(tokens[:, 0], logprobs[:, 0], probs_BV)


_WORTH = 8
"""Shorter prefixes are computed again: chance matches would cost more than they save."""


class SequenceRows:
    """Per row: tokens, how many of them have keys and values, salt, and the sampling state of a running
    sequence.
    """

    def __init__(self, cache: RowCache, rows: int) -> None:
        self.cache = cache
        self.count = rows
        self.active = 0
        self.tokens = np.zeros((rows, cache.length), dtype=np.int32)
        self.logprobs = np.zeros((rows, cache.length), dtype=np.float32)
        self.length = np.zeros(rows, dtype=np.int64)
        self.computed = np.zeros(rows, dtype=np.int64)
        self.limit = np.zeros(rows, dtype=np.int64)
        self.salt = np.zeros(rows, dtype=np.int64)
        self.touched = np.zeros(rows, dtype=np.int64)
        self.temperature = np.zeros(rows, dtype=np.float32)
        self.top_p = np.ones(rows, dtype=np.float32)
        self.top_k = np.zeros(rows, dtype=np.int64)
        self.draws = np.zeros((rows, DRAWS), dtype=np.float32)
        self.drawn = np.zeros(rows, dtype=np.int64)
        counters = [self.length, self.computed, self.limit, self.salt, self.touched, self.top_k, self.drawn]
        self._scalars: list[npt.NDArray[np.generic]] = [*counters, self.temperature, self.top_p]
        self._clock = 0
        self._salts: dict[str, int] = {}

    def admit(self, prompt: IdArray, salt: str) -> int:
        """Put `prompt` into the first row after the active ones, with nothing computed; returns the row."""
        self._clock += 1
        row = self.active
        number = self._salts.setdefault(salt, self._clock)
        # The cached row that the prompt will copy from is touched, so that it is not the victim.
        source, shared = self._match(prompt, number)
        if shared:
            self._touch(source)
        victim = self._victim()
        if victim != row:
            self._copy(row, victim)
        self.cache.clear_row(row)
        self._touch(row)
        self.tokens[row, : len(prompt)] = prompt
        self.length[row] = len(prompt)
        self.computed[row] = 0
        self.salt[row] = number
        self.drawn[row] = DRAWS
        self.active += 1
        return row

    def retire(self, row: int) -> int:
        """End the sequence in `row`, keeping what it computed for the prefix cache.

        The last active row moves into its place; returns where from.
        """
        last = self.active - 1
        if row != last:
            self._swap(row, last)
        self._touch(last)
        self.active = last
        return last

    def reuse(self, row: int) -> int:
        """Copy the longest computed prefix of the row's tokens from another row; returns its length.

        At least one token is left to compute. A finished sequence that the row contains completely is
        dropped, since the row can serve the same prefixes.
        """
        source, shared = self.reusable(row)
        if shared == 0:
            return 0
        self.cache.copy_row(source, row, shared)
        self.computed[row] = shared
        self._touch(source)
        if source >= self.active and shared == self.computed[source]:
            self._clear(source)
        return shared

    def reusable(self, row: int) -> tuple[int, int]:
        """The other row that holds the longest computed prefix of this row's tokens, and that prefix's
        length.
        """
        return self._match(self.tokens[row, : self.length[row] - 1], int(self.salt[row]), skip=row)

    def shared_with(self, row: int, others: list[int]) -> int:
        """Longest prefix that the row's tokens share with those of `others`, under the same salt."""
        return self._match(self.tokens[row, : self.length[row] - 1], int(self.salt[row]), among=others)[1]

    def forget(self) -> None:
        """Drop all computed keys and values: the weights have changed."""
        for row in range(self.count):
            self.cache.clear_row(row)
        self.computed[:] = 0
        self.length[self.active :] = 0
        self._salts = {
            salt: number for salt, number in self._salts.items() if number in self.salt[: self.active]
        }

    def _match(
        self, tokens: IdArray, salt: int, *, skip: int | None = None, among: list[int] | None = None
    ) -> tuple[int, int]:
        """Row with the longest common prefix, and its length; computed prefixes of all rows, or all tokens
        of `among`.
        """
        rows = (
            np.flatnonzero((self.salt == salt) & (self.computed > 0)) if among is None else np.asarray(among)
        )
        rows = rows[self.salt[rows] == salt]
        if skip is not None:
            rows = rows[rows != skip]
        rows = (
            rows[(self.tokens[rows, :_WORTH] == tokens[:_WORTH]).all(1)]
            if len(tokens) >= _WORTH
            else rows[:0]
        )
        if not len(rows):
            return 0, 0
        differs = self.tokens[rows, : len(tokens)] != tokens
        shared = np.where(differs.any(1), differs.argmax(1), len(tokens))
        if among is None:
            shared = self.cache.usable(rows, np.minimum(shared, self.computed[rows]))
        else:
            shared = np.minimum(shared, self.length[rows])
        best = int(shared.argmax())
        return (int(rows[best]), int(shared[best])) if shared[best] >= _WORTH else (0, 0)

    def _victim(self) -> int:
        """An empty row or else the least recently used one, among those without a running sequence."""
        used = np.where(self.computed[self.active :] == 0, -1, self.touched[self.active :])
        return self.active + int(used.argmin())

    def _touch(self, row: int) -> None:
        self._clock += 1
        self.touched[row] = self._clock

    def _clear(self, row: int) -> None:
        self.cache.clear_row(row)
        self.computed[row] = self.length[row] = 0

    def _copy(self, source: int, target: int) -> None:
        length = int(self.computed[source])
        self.cache.copy_row(source, target, length)
        self.tokens[target, :length] = self.tokens[source, :length]
        for column in self._scalars:
            column[target] = column[source]

    def _swap(self, a: int, b: int) -> None:
        self.cache.swap_rows(a, b, int(max(self.computed[a], self.computed[b])))
        length = int(max(self.length[a], self.length[b]))
        for table in (self.tokens[:, :length], self.logprobs[:, :length], self.draws):
            table[[a, b]] = table[[b, a]]
        for column in self._scalars:
            column[[a, b]] = column[[b, a]]
