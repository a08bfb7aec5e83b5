"""What losses and corrections see of a batch: its trained tokens, one number of each kind per token.

A rollout may have several rows; which row a token is in makes no difference to anything here. What is taken
over a whole rollout is taken over all its trained tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harnessgym.traces.trajectories import Row

TimeArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """Trained tokens; float [N] unless it says otherwise."""

    logprobs_N: Tensor
    """Of the current policy; the gradient flows through these alone."""
    behaviour_N: Tensor
    """Of the distribution that was sampled from."""
    proximal_N: Tensor
    """Of the policy that ratios are clipped against. Carries no gradient."""
    advantages_N: Tensor
    rollout_N: Tensor
    """int64: whose token it is, counted from 0. What asks for whole rollouts needs all trained tokens of
    each of them here."""
    time_N: Tensor
    """int64: sorts the tokens of a rollout by when they were sampled."""

    @cached_property
    def log_ratio(self) -> Tensor:
        """log(pi / pi_prox), float [N]: what losses clip."""
        return self.logprobs_N - self.proximal_N

    @cached_property
    def log_weight(self) -> Tensor:
        """log(pi_prox / mu), float [N]: what corrections weigh with. Carries no gradient."""
        return (self.proximal_N - self.behaviour_N).detach()

    @cached_property
    def log_current_weight(self) -> Tensor:
        """log(pi / mu), float [N]. Carries no gradient."""
        return (self.logprobs_N - self.behaviour_N).detach()

    @cached_property
    def _counts(self) -> Tensor:
        """Trained tokens of each rollout, float64 [R]."""
        return torch.bincount(self.rollout_N).double()

    def rollout_sum(self, values_N: Tensor) -> Tensor:
        """For each token the sum of the values of its rollout, float64 [N]."""
        sums_R = torch.zeros_like(self._counts).index_add_(0, self.rollout_N, values_N.detach().double())
        return sums_R[self.rollout_N]

    def rollout_mean(self, values_N: Tensor) -> Tensor:
        """For each token the mean of the values of its rollout, float64 [N]."""
        return self.rollout_sum(values_N) / self._counts[self.rollout_N]

    def least_before(self, values_N: Tensor, first: float) -> Tensor:
        """For each token the least value of its rollout's earlier tokens, [N]; `first` where there is
        none.
        """
        out_N = torch.empty_like(values_N)
        for rollout in range(len(self._counts)):
            own = (self.rollout_N == rollout).nonzero().squeeze(-1)
            own = own[self.time_N[own].argsort()]
            out_N[own] = torch.cat((values_N.new_full((1,), first), values_N[own[:-1]].cummin(0).values))
        return out_N


def sampling_times(rows: Sequence[Row]) -> list[TimeArray]:
    """When each token of these rows of one rollout was sampled, as numbers to sort by, int64 [T] per row.

    Calls are in the order in which they began, the tokens of a call as they stand.
    """
    calls = sorted({(turn.place, turn.call_id) for row in rows for turn in row.turns})
    place = {call_id: index for index, (_, call_id) in enumerate(calls, 1)}
    out = []
    for row in rows:
        times = np.arange(len(row.ids), dtype=np.int64)
        for turn in row.turns:
            times[turn.start : turn.end] += place[turn.call_id] << 32
        out.append(times)
    return out
