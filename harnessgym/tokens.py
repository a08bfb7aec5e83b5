"""Token sequences: how they are stored, hashed and labelled with policy versions.

As bytes, ids are little-endian int32 and logprobs float32. Only the store drops bytes that are zero in all
ids of a segment. A hash covers exact bytes, so the upstream client, the store and `traces verify` compute it
independently and must agree.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self, SupportsIndex, overload

import numpy as np
import numpy.typing as npt
import xxhash

from harnessgym.errors import TraceError

TokenIds = Sequence[int]
"""Token ids in order."""

IdArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]

_WIDE = 4
"""Bytes of an int32."""


class TokenArray(array):  # type: ignore[type-arg]  # takes a parameter from Python 3.12 on
    """Token ids in 4 bytes each, fast to copy, hash and send. Equal to any sequence of the same ids."""

    def __new__(cls, ids: TokenIds = ()) -> Self:
        """Raises `OverflowError` for an id beyond int32."""
        return super().__new__(cls, "i", ids)  # type: ignore[return-value]

    @classmethod
    def stored(cls, blob: bytes, length: int, segment: str = "?") -> Self:
        """The token ids of `narrow_ids` bytes. Raises as `widen_ids` does."""
        token_ids = cls()
        token_ids.frombytes(
            blob if len(blob) == _WIDE * length else widen_ids(blob, length, segment).tobytes()
        )
        if sys.byteorder == "big":
            token_ids.byteswap()
        return token_ids

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    def __ne__(self, other: object) -> bool:
        # `array` has one of its own, for which every list differs.
        return not self == other

    def __hash__(self) -> int:  # type: ignore[override]
        """The hash of the tuple. An array in a key must not change."""
        return hash(tuple(self))

    @overload
    def __getitem__(self, at: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> "TokenArray": ...
    def __getitem__(self, at: SupportsIndex | slice) -> "int | TokenArray":
        item: Any = super().__getitem__(at)
        return TokenArray(item) if isinstance(at, slice) else int(item)


class PieceTokens(Sequence[int]):
    """Token ids as pieces that other sequences share: equal parts of many prompts are in memory once.

    Equal to any sequence of the same ids. The pieces must not change.
    """

    __slots__ = ("_length", "pieces")

    def __init__(self, pieces: Iterable[TokenArray]) -> None:
        self.pieces = tuple(pieces)
        self._length = sum(map(len, self.pieces))

    def whole(self) -> TokenArray:
        """All ids in one array, a new one."""
        ids = TokenArray()
        ids.frombytes(b"".join(self.pieces))
        return ids

    @classmethod
    def of(cls, ids: TokenIds) -> "PieceTokens":
        """Any token ids as pieces."""
        return ids if isinstance(ids, PieceTokens) else cls([as_array(ids)])

    def part(self, start: int, end: int | None = None) -> "PieceTokens":
        """The ids [start, end). Only the first and the last piece are copied, if they are cut."""
        end = self._length if end is None else end
        parts = []
        at = 0
        for piece in self.pieces:
            first, last = max(0, start - at), min(len(piece), end - at)
            if first < last:
                parts.append(piece if last - first == len(piece) else piece[first:last])
            at += len(piece)
        return PieceTokens(parts)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> TokenArray: ...
    def __getitem__(self, at: int | slice) -> int | TokenArray:
        return self.whole()[at]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.pieces)

    def __eq__(self, other: object) -> bool:
        return self.whole() == other

    def __hash__(self) -> int:
        return hash(tuple(self))


def as_array(ids: TokenIds) -> TokenArray:
    """Token ids as an array; `ids` itself if it is one."""
    if isinstance(ids, PieceTokens):
        return ids.whole()
    return ids if isinstance(ids, TokenArray) else TokenArray(ids)


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Completion tokens [start, end) were sampled under policy `version`."""

    start: int
    end: int
    version: int


def pack_ids(ids: TokenIds) -> bytes:
    """int32 little-endian bytes of token ids."""
    if isinstance(ids, TokenArray | PieceTokens) and sys.byteorder == "little":
        return ids.tobytes() if isinstance(ids, TokenArray) else b"".join(ids.pieces)
    return np.asarray(ids, dtype="<i4").tobytes()


def narrow_ids(ids: TokenIds) -> bytes:
    """Little-endian token ids, each in as many bytes as the largest needs: 2, 3 or 4."""
    packed = np.frombuffer(pack_ids(ids), dtype="<i4")
    highest = int(packed.view("<u4").max(initial=0))
    width = 2 if highest < 1 << 16 else 3 if highest < 1 << 24 else _WIDE
    return packed.view(np.uint8).reshape(-1, _WIDE)[:, :width].tobytes()


def widen_ids(blob: bytes, length: int, segment: str = "?") -> IdArray:
    """Token ids [length] int32 of `narrow_ids` bytes.

    Raises `TraceError` naming the segment if the bytes do not make `length` ids. Truncated bytes that happen
    to divide evenly are read as wrong ids, which the segment's `hash` detects.
    """
    width = len(blob) // length if length else 2
    if width * length != len(blob) or not 2 <= width <= _WIDE:
        raise TraceError(f"Segment {segment}: {len(blob)} bytes are not {length} token ids.")
    if width == 3:
        # Read 4 bytes at every third one and mask the fourth, which belongs to the next id. The added zero
        # keeps the last read inside the buffer.
        overlapping = np.ndarray(length, "<u4", blob + b"\0", strides=(width,))
        return (overlapping & 0xFFFFFF).astype("<i4")
    return np.frombuffer(blob, "<u2").astype("<i4") if width == 2 else np.frombuffer(blob, "<i4")


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """float32 little-endian bytes of logprobs."""
    return np.asarray(logprobs, dtype="<f4").tobytes()


def unpack_logprobs(blob: bytes) -> FloatArray:
    """Logprobs [T] float32 of `pack_logprobs` bytes."""
    return np.frombuffer(blob, dtype="<f4")


def hash_ids(ids: TokenIds) -> str:
    """xxh3-128 of the packed ids, in hex."""
    return xxhash.xxh3_128_hexdigest(pack_ids(ids))


def hash_completion(ids: TokenIds, logprobs: Sequence[float], spans: Iterable[VersionSpan]) -> str:
    """xxh3-128 over ids, logprobs and version spans together, in hex."""
    digest = xxhash.xxh3_128(pack_ids(ids))
    digest.update(pack_logprobs(logprobs))
    digest.update(pack_ids([number for span in spans for number in (span.start, span.end, span.version)]))
    return digest.hexdigest()


def spans_of(versions: Sequence[int]) -> tuple[VersionSpan, ...]:
    """Run-length spans of one policy version per token."""
    spans: list[VersionSpan] = []
    start = 0
    for end in range(1, len(versions) + 1):
        if end == len(versions) or versions[end] != versions[start]:
            spans.append(VersionSpan(start, end, versions[start]))
            start = end
    return tuple(spans)


def versions_of(spans: Iterable[VersionSpan], length: int) -> IdArray:
    """One policy version per token [length] int32. Raises `TraceError` unless spans tile [0, length)."""
    versions = np.zeros(length, dtype=np.int32)
    reached = 0
    for span in spans:
        if span.start != reached or span.end <= span.start or span.end > length:
            raise TraceError(f"Version span {span} does not continue at token {reached} of {length}.")
        versions[span.start : span.end] = span.version
        reached = span.end
    if reached != length:
        raise TraceError(f"Version spans cover {reached} of {length} completion tokens.")
    return versions
