"""Runs the native policy, whose keys and values lie in one block."""

import torch
from torch import Tensor

from harnessgym.tokens import IdArray
from trainers.engine.runner import Ints
from trainers.policies.kv_cache import KVCache
from trainers.policies.native import NativePolicy


class NativeRunner:
    """All rows of a call are computed together."""

    def __init__(self, policy: NativePolicy, rows: int, length: int) -> None:
        self.policy = policy
        self._device = policy.device
        self.cache = KVCache(policy.config, rows, length, policy.norm.dtype, self._device)

    def prefill(self, rows: Ints, ids_BT: IdArray, start_B: Ints, count_B: Ints, *, whole: bool) -> Tensor:
        """Hidden states [B, 1, hidden] or [B, T, hidden]; see `ModelRunner`."""
        ids, start, index, last = (self._tensor(each) for each in (ids_BT, start_B, rows, count_B - 1))
        return self.policy.forward_cached(ids, start, self.cache, index, None if whole else last)

    def decode(self, ids_B: IdArray, start_B: Ints) -> Tensor:
        """Hidden states [B, hidden]; see `ModelRunner`."""
        ids = self._tensor(ids_B)[:, None]
        return self.policy.forward_cached(ids, self._tensor(start_B), self.cache, slice(0, len(ids)))[:, 0]

    def notice(self) -> str:
        """Nothing."""
        return ""

    def _tensor(self, array: IdArray | Ints) -> Tensor:
        return torch.as_tensor(array, device=self._device)
