"""Log-probabilities of tokens under a policy, without gradients: passes over rows in micro-batches, in all
processes of the trainer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from harnessgym.tokens import FloatArray, IdArray
from harnessgym.traces.trajectories import Row
from trainers.packing import Routing, micro_batches, sharing_keys
from trainers.policy import Policy
from trainers.update_settings import UpdateSettings
from trainers.world import World

PassSize = Callable[[Sequence[IdArray]], int]
"""See `Policy.pass_size`."""
Compute = Callable[[Sequence[IdArray], Sequence[IdArray], Routing], npt.NDArray[np.generic]]
"""Takes the ids, masks and recorded experts of some rows, and returns a value for each token with mask 1, row
after row, [N] or [N, K]."""


@dataclass(frozen=True, slots=True)
class TopTokens:
    """A policy's K likeliest tokens at each position of a row; values of untrained positions are 0."""

    ids: IdArray
    """int32 [T, K]."""
    logprobs: FloatArray
    """float32 [T, K], of the whole vocabulary's distribution."""


class Scorer:
    """Scores the trained tokens of rows under the weights that a policy has at the moment.

    All processes of the trainer call it together, and each gets all scores. Experts that rows have are
    replayed.
    """

    def __init__(self, policy: Policy, update: UpdateSettings, world: World) -> None:
        """Scores are at the temperature of `update`, passes of its size."""
        self.policy = policy
        self.update = update
        self.world = world

    def logprobs(self, rows: Sequence[Row]) -> list[FloatArray]:
        """Logprobs of the trained tokens of each row, float32 [T], 0 elsewhere."""

        def compute(
            ids: Sequence[IdArray], masks: Sequence[IdArray], routing: Routing
        ) -> npt.NDArray[np.generic]:
            return self.policy.logprobs(ids, masks, self.update.temperature, routing).cpu().numpy()

        return self._per_token(rows, compute)

    def top(self, rows: Sequence[Row], count: int, vocabulary: int) -> list[TopTokens]:
        """The `count` likeliest tokens at each trained position of each row, of those with ids below
        `vocabulary`.
        """
        temperature = self.update.temperature

        def compute(
            ids: Sequence[IdArray], masks: Sequence[IdArray], routing: Routing
        ) -> npt.NDArray[np.generic]:
            # Ids in float64 are exact, and one array crosses between processes.
            return self.policy.likeliest(ids, masks, temperature, count, vocabulary, routing).cpu().numpy()

        return [
            TopTokens(each[:, :count].astype(np.int32), each[:, count:].astype(np.float32))
            for each in self._per_token(rows, compute, (2 * count,))
        ]

    @torch.no_grad()
    def _per_token(
        self, rows: Sequence[Row], compute: Compute, columns: tuple[int, ...] = ()
    ) -> list[npt.NDArray[Any]]:
        limit = self.update.micro_batch_tokens
        return per_token(rows, compute, limit, self.policy.pass_size, self.world, columns)


def per_token(
    rows: Sequence[Row],
    compute: Compute,
    max_tokens: int,
    size: PassSize,
    world: World,
    columns: tuple[int, ...] = (),
) -> list[npt.NDArray[Any]]:
    """A value, or a row of `columns` values, for each trained token of each row, in every process: [T] or
    [T, K] per row, 0 elsewhere.
    """
    keys = sharing_keys([row.ids for row in rows], routing_of(rows))
    trained = [index for index, row in enumerate(rows) if row.mask.any()]
    parts = [[trained[place] for place in part] for part in world.parts([len(rows[i].ids) for i in trained])]
    plans = [micro_batches([[keys[index]] for index in part], max_tokens, size) for part in parts]
    mine = parts[world.rank]
    own = dict[int, npt.NDArray[Any]]()
    for batch in plans[world.rank]:
        indices = [mine[place] for place in batch]
        masks = [rows[index].mask for index in indices]
        routing = routing_of([rows[index] for index in indices])
        values = compute([rows[index].ids for index in indices], masks, routing)
        ends = np.cumsum([np.count_nonzero(mask) for mask in masks])[:-1]
        for index, part in zip(indices, np.split(values, ends), strict=True):
            own[index] = np.zeros((len(rows[index].ids), *columns), values.dtype)
            own[index][rows[index].mask != 0] = part
    # Every pass is a collective operation if the policy is sharded: a process with fewer of them takes part
    # in the others' with a pass of its own.
    for _ in range(max(map(len, plans)) - len(plans[world.rank])):
        compute(*SHORT_PASS, None)
    found = {index: values for part in world.all_gather(own) for index, values in part.items()}
    empty = ((len(row.ids), *columns) for row in rows)
    return [
        found[index] if index in found else np.zeros(shape, np.float32) for index, shape in enumerate(empty)
    ]


def routing_of(rows: Sequence[Row]) -> Routing:
    """The recorded experts of some rows."""
    routing = [row.experts for row in rows]
    return None if all(each is None for each in routing) else routing


SHORT_PASS = ([np.zeros(2, np.int32)], [np.array([0, 1], np.int32)])
"""Ids and masks of the shortest pass."""


@torch.no_grad()
def mean_logprobs(
    policy: Policy, texts: Sequence[IdArray], tails: Sequence[int], settings: UpdateSettings
) -> list[float]:
    """The mean logprob of the last `tails[i]` tokens of `texts[i]`, at the sampling temperature; 0 if
    `tails[i]` is 0.

    A text that exceeds the policy's context loses its beginning.
    """
    texts = [text[-policy.context :] for text in texts]
    scored = [index for index, tail in enumerate(tails) if tail]
    out = [0.0] * len(texts)
    units = [[texts[index]] for index in scored]
    for batch in micro_batches(units, settings.micro_batch_tokens, policy.pass_size):
        part = [scored[place] for place in batch]
        masks = [_tail(len(texts[index]), tails[index]) for index in part]
        rows = [texts[index] for index in part]
        logprobs_M = policy.logprobs(rows, masks, settings.temperature).cpu()
        for index, own in zip(
            part, torch.split(logprobs_M, [int(mask.sum()) for mask in masks]), strict=True
        ):
            out[index] = float(own.double().mean())
    return out


def _tail(length: int, tail: int) -> IdArray:
    """A mask of the last `tail` tokens, without the text's first token, which nothing predicts."""
    place = np.arange(length)
    return ((place >= length - tail) & (place > 0)).astype(np.int32)
