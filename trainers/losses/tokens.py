"""The trained tokens of a batch, as losses and corrections see them: flat, one number of each kind per token.

A rollout may have several rows; it makes no difference here which row a token is in. A sum or mean over a
rollout is over all its trained tokens.
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
    """Logprobs of the current policy, the only part with a gradient."""
    behaviour_N: Tensor
    """Logprobs of the distribution that was sampled from."""
    proximal_N: Tensor
    """Logprobs of the policy against which ratios are clipped, without gradient."""
    advantages_N: Tensor
    rollout_N: Tensor
    """int64: index of the token's rollout. Losses and corrections over whole rollouts need all trained
    tokens of each rollout."""
    time_N: Tensor
    """int64: sorts the tokens of a rollout by when they were sampled."""

    @cached_property
    def log_ratio(self) -> Tensor:
        """log(pi / pi_prox), float [N], which losses clip."""
        return self.logprobs_N - self.proximal_N

    @cached_property
    def log_weight(self) -> Tensor:
        """log(pi_prox / mu), float [N], which corrections weight by; without gradient."""
        return (self.proximal_N - self.behaviour_N).detach()

    @cached_property
    def log_current_weight(self) -> Tensor:
        """log(pi / mu), float [N], without gradient."""
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
        """For each token the smallest value of its rollout's earlier tokens, [N]; `first` if it has none."""
        out_N = torch.empty_like(values_N)
        for rollout in range(len(self._counts)):
            own = (self.rollout_N == rollout).nonzero().squeeze(-1)
            own = own[self.time_N[own].argsort()]
            out_N[own] = torch.cat((values_N.new_full((1,), first), values_N[own[:-1]].cummin(0).values))
        return out_N


def sampling_times(rows: Sequence[Row]) -> list[TimeArray]:
    """When each token of these rows of one rollout was sampled, as numbers to sort by, int64 [T] per row.

    Calls are sorted by when they began, the tokens of a call by position.
    """
    calls = sorted({(turn.place, turn.call_id) for row in rows for turn in row.turns})
    place = {call_id: index for index, (_, call_id) in enumerate(calls, 1)}
    # The upper 32 bits hold the call's index and the lower ones the position in the row.
    out = []
    for row in rows:
        times = np.arange(len(row.ids), dtype=np.int64)
        for turn in row.turns:
            times[turn.start : turn.end] += place[turn.call_id] << 32
        out.append(times)
    return out
