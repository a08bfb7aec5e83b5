"""The seam between an engine's scheduling and its model: what computes tokens, and the cache kept for them.

The members are in `runners/`: one for the native policy, one for every other model.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from harnessgym.tokens import IdArray
from trainers.policy import Policy

Ints = npt.NDArray[np.int64]


class RowCache(Protocol):
    """What later tokens need of earlier ones, for `rows` sequences of at most `length` tokens each."""

    @property
    def length(self) -> int:
        """Most tokens of a row."""

    def usable(self, rows: Ints, lengths_B: Ints) -> Ints:
        """For each row the longest prefix, of at most so many tokens, from which another row can continue."""

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Make one row hold the first `length` tokens of another; `usable` has given this length."""

    def swap_rows(self, a: int, b: int, length: int) -> None:
        """Exchange two rows, of which neither holds more than `length` tokens."""

    def clear_row(self, row: int) -> None:
        """Forget what a row holds."""


class ModelRunner(Protocol):
    """Computes tokens with a policy. Called by the engine's thread, in inference mode.

    A row's result does not depend on the other rows of a call, up to rounding. All arrays are on the CPU,
    all tensors on the policy's device.
    """

    @property
    def policy(self) -> Policy:
        """The policy that it computes."""

    @property
    def cache(self) -> RowCache:
        """Its rows' cache."""

    def prefill(self, rows: Ints, ids_BT: IdArray, start_B: Ints, count_B: Ints, *, whole: bool) -> Tensor:
        """Append tokens to rows that hold `start_B` tokens each: the first `count_B` of `ids_BT`, at least 1.

        Returns the hidden states of each row's last token, [B, 1, hidden], or with `whole` of all tokens,
        [B, T, hidden]; then all starts of rows whose states are read must be 0.
        """

    def decode(self, ids_B: IdArray, start_B: Ints) -> Tensor:
        """Append a token to each of the first B rows; their hidden states, [B, hidden]."""

    def notice(self) -> str:
        """What a user should know about how this model is served; empty if nothing."""
