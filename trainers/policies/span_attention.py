"""Attention over packed rows, for any model whose attention transformers lets us replace.

A model calls it in every layer in place of its own attention, with queries, keys and values of the packed
sequence. The spans (`trainers.packing`) say what attends to what, so the model gets no mask.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from trainers.packing import Packed, PackedSpan, gathered

SPANS = "harnessgym_spans"
"""Its name in transformers."""
_IGNORED = frozenset(
    {"position_ids", "use_cache", "cache_position", "output_attentions", "is_causal", "dropout"}
)
"""Arguments that change nothing here: positions are in queries and keys already, and nothing is dropped."""


class SpansUnsupported(Exception):
    """A model's attention is not computed over spans."""


class SpanLog:
    """What models asked for, while rows are packed for a trial."""

    def __init__(self) -> None:
        self.windows: list[int | None] = []
        """Sliding window of each layer that attended."""


class Product(Protocol):
    """The attention of packed rows itself."""

    def __call__(
        self,
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
        """Output [1, N, heads, D]; queries, keys and values are [1, heads, N, D].

        `window` is how many tokens a token sees, itself included; `softcap` bounds scores by its tanh;
        `sinks_H` is a score per head that takes a share of the softmax and has no value (gpt-oss).
        """
        ...


Attend = Callable[..., tuple[Tensor, None]]
"""What models call in place of their own attention."""


def attend_with(product: Product) -> Attend:
    """An attention for models of transformers that computes packed rows by a product."""

    def attend(
        module: nn.Module,  # noqa: ARG001
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        packed: Packed | None = None,
        span_log: SpanLog | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        rows = _checked(packed, attention_mask, others)
        if span_log is not None:
            span_log.windows.append(sliding_window)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        out = product(
            query, key, value, rows, scale=scale, window=sliding_window, softcap=softcap, sinks_H=s_aux
        )
        return out, None

    return attend


def spans_product(
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
    """See `Product`: one product of torch's for each span."""
    outputs = []
    for span in packed.spans:
        q = gathered(query, span.queries_SQ)
        k = gathered(key, span.keys_SK)
        v = gathered(value, span.keys_SK)
        mask = _mask(span, packed.positions_N, window)
        if softcap is None and sinks_H is None:
            out = _fused(q, k, v, mask, scale)
        else:
            out = _explicit(q, k, v, mask, scale, softcap, sinks_H)
        outputs.append(out.transpose(1, 2).flatten(0, 1).index_select(0, span.real))
    return torch.cat(outputs)[None]


def _checked(packed: Packed | None, mask: Tensor | None, others: Mapping[str, Any]) -> Packed:
    """The packed rows that a layer attends over. Raises `SpansUnsupported` if it passes something else on."""
    if packed is None:
        raise SpansUnsupported("its layers do not pass arguments on to attention")
    unknown = [name for name, given in others.items() if given is not None and name not in _IGNORED]
    if unknown or mask is not None:
        raise SpansUnsupported(f"its attention has {unknown[0] if unknown else 'a mask of its own'}")
    return packed


def _mask(span: PackedSpan, positions_N: Tensor, window: int | None) -> Tensor | None:
    """True where a query may attend, bool [S, 1, Q, K]; None for plain causal attention."""
    mask_SQK = span.mask_SQK
    if window is not None:
        query_SQ = positions_N[span.queries_SQ]
        key_SK = positions_N[span.keys_SK]
        if int(query_SQ.max()) >= window:
            near_SQK = query_SQ[:, :, None] - key_SK[:, None, :] < window
            mask_SQK = near_SQK & (_causal(span) if mask_SQK is None else mask_SQK)
    return None if mask_SQK is None else mask_SQK[:, None]


def _causal(span: PackedSpan) -> Tensor:
    size = span.queries_SQ.shape[1]
    return torch.ones(size, size, dtype=torch.bool, device=span.queries_SQ.device).tril()


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def _explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks_H: Tensor | None,
) -> Tensor:
    """Attention with bounded scores or sinks, which the fused product does not compute."""
    repeats = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(repeats, dim=1) for each in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    size = scores.shape[-1]
    allowed = torch.ones(size, size, dtype=torch.bool, device=q.device).tril() if mask is None else mask
    scores = scores.float().masked_fill(~allowed, float("-inf"))
    if sinks_H is not None:
        sinks = sinks_H.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sinks), dim=-1)
    return torch.matmul(scores.softmax(-1)[..., :size].to(v.dtype), v)


def _no_mask(*_: object, **__: object) -> None:
    """The mask that a model makes for this attention: none."""


def register(name: str, attention: Attend) -> str:
    """Make an attention over packed rows known to transformers; returns its name."""
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, _no_mask)
    return name
