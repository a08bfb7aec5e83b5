"""The experts that an engine chose for tokens of a mixture-of-experts model, for routing replay.

A trainer that computes a sampled token again may choose other experts than the engine did: a rounding error
decides between two experts of nearly equal score. Routing replay (R3, arXiv 2510.11370) makes it use the
recorded ones.

The routing of a token is known once its hidden states were computed. So an engine reports it for every token
of a call but the last sampled one, which it never computed.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from harnessgym.errors import TraceError

ExpertArray = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
"""Expert numbers [tokens, layers, top_k], in 1 byte each if there are at most 256 experts, else in 2."""

_LEVEL = 1
"""zlib's. Expert numbers hardly repeat in runs, so higher levels only take longer."""
_WIDTHS: dict[int, str] = {1: "<u1", 2: "<u2"}


@dataclass(frozen=True, slots=True)
class RoutedExperts:
    """The experts of the tokens [start, start + T) of a call's context: its prompt, then what it sampled."""

    start: int
    experts: ExpertArray
    """[T, layers, top_k]. `layers` counts what the engine reports: all layers (those without experts have
    zeros), only those with experts, or 1 if the engine does not tell layers apart; then `top_k` counts the
    experts of all layers."""

    def __post_init__(self) -> None:
        if self.experts.ndim != 3 or self.experts.dtype not in (np.uint8, np.uint16) or self.start < 0:
            raise TraceError(
                f"Routed experts are uint8 or uint16 [tokens, layers, top_k], not {self.experts.dtype} "
                f"{list(self.experts.shape)} from token {self.start} on."
            )

    @property
    def end(self) -> int:
        """The first token behind them."""
        return self.start + len(self.experts)

    def beginning_at(self, start: int) -> Self:
        """Those of the tokens from `start` on."""
        kept = max(start, self.start)
        return type(self)(kept, self.experts[kept - self.start :])

    def packed(self) -> "PackedExperts":
        """The form in which they are stored. Takes milliseconds per megabyte."""
        # Layer by layer, as the numbers of a layer are alike.
        by_layer = np.ascontiguousarray(self.experts.transpose(1, 2, 0))
        raw = by_layer.astype(by_layer.dtype.newbyteorder("<")).tobytes()
        tokens, layers, top_k = self.experts.shape
        blob = zlib.compress(raw, _LEVEL)
        return PackedExperts(self.start, tokens, layers, top_k, self.experts.itemsize, blob)


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Routed experts as they are stored."""

    start: int
    tokens: int
    layers: int
    top_k: int
    width: int
    """Bytes per number."""
    experts: bytes
    """The numbers, little-endian, [layers, top_k, tokens], compressed."""

    def unpacked(self) -> RoutedExperts:
        """The experts. Raises `TraceError` if the bytes are not such numbers."""
        try:
            raw = zlib.decompress(self.experts)
            by_layer = np.frombuffer(raw, _WIDTHS[self.width]).reshape(self.layers, self.top_k, self.tokens)
        except (zlib.error, KeyError, ValueError) as error:
            raise TraceError(
                f"{len(self.experts)} bytes are not the routed experts of {self.tokens} tokens in "
                f"{self.layers} layers, {self.top_k} each, of {self.width} bytes: {error}"
            ) from error
        experts = np.ascontiguousarray(by_layer.transpose(2, 0, 1)).astype(f"u{self.width}")
        return RoutedExperts(self.start, experts)


@dataclass(frozen=True, slots=True)
class RowExperts:
    """The experts of the T tokens of a training row."""

    experts: ExpertArray
    """[T, layers, top_k]; zeros where not recorded."""
    recorded: npt.NDArray[np.bool_]
    """bool [T]. A row's last token was sampled and not computed, so it has none."""

    def __post_init__(self) -> None:
        assert self.experts.ndim == 3
        assert self.recorded.shape == self.experts.shape[:1]

    @classmethod
    def joined(cls, parts: Sequence[RoutedExperts], length: int) -> Self:
        """The experts of a row of `length` tokens, from those of its calls in order.

        Raises `TraceError` if they differ in shape or are more than the row's tokens.
        """
        shapes = {part.experts.shape[1:] for part in parts}
        if len(shapes) > 1 or max(part.end for part in parts) > length:
            raise TraceError(
                f"Their routed experts are {sorted(map(list, shapes))} per token for up to "
                f"{max(part.end for part in parts)} tokens, which is no row of {length} tokens of one model."
            )
        kind = np.result_type(*(part.experts.dtype for part in parts))
        experts = np.zeros((length, *parts[0].experts.shape[1:]), kind)
        recorded = np.zeros(length, np.bool_)
        for part in parts:
            # An engine that lost its cache computed a token again, perhaps by other experts. Those of the
            # first call stay: a row is computed once, and that call's own tokens depend on them.
            fresh = np.flatnonzero(~recorded[part.start : part.end])
            experts[part.start + fresh] = part.experts[fresh]
            recorded[part.start + fresh] = True
        return cls(experts, recorded)
