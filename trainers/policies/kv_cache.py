"""The native policy's key-value cache, a `RowCache` of the embedded engine."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainers.policies.native_config import NativeConfig

_CPU = torch.device("cpu")


class KVCache:
    """Keys and values of `rows` sequences of at most `length` tokens: per layer two tensors [rows, kv_heads,
    length, head_dim].

    Both are views of one block [layers, 2, rows, kv_heads, length, head_dim], so one copy per layer writes a
    token and one copy moves a row.
    """

    def __init__(
        self,
        config: NativeConfig,
        rows: int,
        length: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device = _CPU,
    ) -> None:
        shape = (config.num_hidden_layers, 2, rows, config.num_key_value_heads, length, config.head_dim)
        self.block = _zeros(shape, dtype, device)
        self.keys = list(self.block[:, 0])
        self.values = list(self.block[:, 1])
        self._slots = list(self.block.flatten(1, 4))
        # In a layer's flat view [2 * rows * kv_heads * length, head_dim] all rows' keys come before all
        # rows' values. Head h of a row's keys is at row * kv_heads + h; its values lie `rows` rows further,
        # hence the offset for the second half.
        self._heads = torch.arange(2 * config.num_key_value_heads, device=device)
        self._heads += (rows - 1) * config.num_key_value_heads * (self._heads >= config.num_key_value_heads)
        self.rows = rows
        self.length = length

    def slots(self, rows_B: Tensor, position_BT: Tensor) -> Tensor:
        """The index [B * T * 2 * kv_heads] for `write`: per token the slots of all heads' keys, then of their
        values.
        """
        head_BH = rows_B[:, None] * (len(self._heads) // 2) + self._heads
        return (head_BH[:, None] * self.length + position_BT[:, :, None]).flatten()

    def write(self, depth: int, slots: Tensor, k_BHTD: Tensor, v_BHTD: Tensor) -> None:
        """Store one layer's keys and values."""
        pair = torch.cat((k_BHTD.transpose(1, 2), v_BHTD.transpose(1, 2)), dim=2)
        self._slots[depth].index_copy_(0, slots, pair.flatten(0, 2))

    def usable(self, rows: npt.NDArray[np.int64], lengths_B: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:  # noqa: ARG002
        """The lengths themselves: keys and values of any prefix can be copied."""
        return lengths_B

    def clear_row(self, row: int) -> None:
        """Nothing: the row's memory stays, and is written over."""

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row over another."""
        self.block[:, :, target, :, :length] = self.block[:, :, source, :, :length]

    def swap_rows(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` positions of two rows."""
        held = self.block[:, :, a, :, :length].clone()
        self.block[:, :, a, :, :length] = self.block[:, :, b, :, :length]
        self.block[:, :, b, :, :length] = held


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # NumPy takes zero pages from the system, which occupy memory only once they are written to; torch.zeros
    # would touch the whole block at start.
    zeros = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(zeros).view(dtype).view(shape)
