"""Attention over packed rows by torch's FlexAttention: one product for all rows and their shared prefixes.

On CUDA it is one compiled kernel, which skips blocks in which nothing may attend. On CPUs torch computes it
with all scores at once and without gradients, which is for tests.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from trainers.packing import Packed

NAME = "harnessgym_flex"
"""Its name in transformers."""
_Attention = Callable[..., Any]


def flex_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: Packed,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks_H: Tensor | None,
) -> Tensor:
    """See `trainers.policies.span_attention.Product`."""
    out, aux = _attention_on(query.device.type)(
        query,
        key,
        value,
        score_mod=None if softcap is None else _bounded(softcap),
        block_mask=_block_mask(packed, window),
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
        return_aux=AuxRequest(lse=True),
    )
    if sinks_H is not None:
        # A sink is one more term of the softmax's sum: the share of the others is a logistic function.
        share = torch.sigmoid(aux.lse - sinks_H.to(aux.lse.dtype).view(1, -1, 1))
        out = out * share[..., None].to(out.dtype)
    output: Tensor = out.transpose(1, 2)
    return output


@cache
def _attention_on(device: str) -> _Attention:
    """FlexAttention for a kind of device; compiled where it has a kernel."""
    attention: _Attention = flex_attention
    return torch.compile(attention, dynamic=True) if device == "cuda" else attention


@cache
def _bounded(softcap: float) -> _Attention:
    def bounded(score: Tensor, *_: Tensor) -> Tensor:
        return torch.tanh(score / softcap) * softcap

    return bounded


def _block_mask(packed: Packed, window: int | None) -> BlockMask:
    """Which tokens attend to which. All layers of a pass with the same window share it."""
    if window not in packed.masks:
        enter_N, leave_N = packed.intervals()
        positions_N, size = packed.positions_N, len(packed.ids_N)

        def allowed(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
            within = (enter_N[key] <= enter_N[query]) & (enter_N[query] < leave_N[key])
            near = None if window is None else positions_N[query] - positions_N[key] < window
            return within if near is None else within & near

        packed.masks[window] = create_block_mask(
            allowed, B=None, H=None, Q_LEN=size, KV_LEN=size, device=str(packed.ids_N.device)
        )
    mask: BlockMask = packed.masks[window]
    return mask
