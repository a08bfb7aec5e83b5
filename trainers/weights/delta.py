"""The codec of weight deltas: which elements of a tensor differ from a base, bit by bit, and their new bits.

A delta overwrites elements, so applying it twice, or to a partly updated tensor, gives the same result.
Elements are compared as integers of their width: NaN payloads and the sign of zero count. This module knows
nothing about versions or files.

Layout of a payload (all integers little-endian): the index stream, then the value stream. Each is split into
byte planes (all lowest bytes, then the next, ...) and compressed with zstd if that makes it shorter; its
first byte says which. Indices are either absolute int32, or `gap16`: the number of elements skipped since the
last change, where 65535 means "skip 65535 elements and continue" (the delta-int16 of SparseRL-Sync with an
escape). A tensor is sent whole if its payload would not be shorter than its bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import zstandard
from torch import Tensor

from harnessgym.errors import PolicyError

Coding = Literal["whole", "int32", "gap16"]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Gaps: TypeAlias = npt.NDArray[np.uint16]
Indices: TypeAlias = npt.NDArray[np.int64]

_BLOCK = 1 << 20
"""Bytes of each side that are compared at a time, so that they fit in a core's second-level cache."""
_CHANGES = 1 << 16
"""Changes that are written at a time, for the same reason."""
_ESCAPE = 0xFFFF
_INT32_ELEMENTS = 1 << 31
"""Tensors of more elements have no absolute int32 index; gaps have no limit."""
_LEVEL = 1
"""zstd's compression level. Higher ones take several times as long and save about a percent: byte planes have
a skewed distribution but few repetitions."""
_RAW, _ZSTD = b"\0", b"\1"
"""First byte of a stream that is not empty."""
_WORDS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes of one tensor relative to its base. `payload` is empty if nothing changed."""

    coding: Coding
    changed: int
    """Elements that differ; for `whole`, all elements."""
    index_bytes: int
    """Length of the index stream, the first part of `payload`."""
    payload: bytes | memoryview


def flat_bytes(tensor: Tensor) -> Bytes:
    """Bytes [size * itemsize] of a tensor in row-major order; a view if it is contiguous and in main
    memory.
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def encode(base: Tensor, tensor: Tensor) -> Delta:
    """The delta that turns `base` into `tensor`. Needs memory for two bytes and one value per change, and for
    the payload.

    Raises `PolicyError` if dtype or shape differ.
    """
    if base.dtype != tensor.dtype or base.shape != tensor.shape:
        raise PolicyError(
            f"A delta needs tensors of one dtype and shape, not {base.dtype} {tuple(base.shape)} and "
            f"{tensor.dtype} {tuple(tensor.shape)}. Publish this version in full."
        )
    old = flat_bytes(base)
    new = flat_bytes(tensor)
    width = _width(tensor.dtype)
    size = len(new) // width
    changes = _changes(old, new, width, most=size // 2)
    if changes is None:
        return _whole(new, width)
    gaps, values = changes
    # A gap takes 2 bytes and an absolute index 4, so gaps are chosen while escapes at most double their
    # number; a tie goes to gaps. The choice depends only on the data: equal tensors give equal bytes.
    dense = size > _INT32_ELEMENTS or len(gaps) <= 2 * len(values)
    index = _pack(gaps if dense else np.concatenate([np.empty(0, np.int64), *_indices(gaps)]).astype("<i4"))
    payload = index + _pack(values)
    # A tie goes to the whole tensor, which is faster to apply. An empty tensor has an empty payload.
    if len(payload) >= len(new) > 0:
        return _whole(new, width)
    return Delta("gap16" if dense else "int32", len(values), len(index), payload)


def apply(delta: Delta, target: Tensor) -> None:
    """Overwrite the changed elements of a contiguous CPU tensor in place.

    Raises `PolicyError` if the payload does not fit the tensor; the tensor is then unchanged.
    """
    if not target.is_contiguous() or target.device.type != "cpu":
        raise PolicyError(
            "A delta can only be applied to a contiguous tensor in main memory. Copy the tensor there first."
        )
    data = flat_bytes(target)
    width = _width(target.dtype)
    size = len(data) // width
    packed = memoryview(delta.payload)
    changed = delta.changed
    if delta.coding == "whole":
        if len(packed) != len(data):
            raise _damaged(f"it has {len(packed)} bytes for a tensor of {len(data)}")
        data[:] = np.frombuffer(packed, np.uint8)
        return
    if not 0 <= changed <= size or not 0 <= delta.index_bytes <= len(packed):
        raise _damaged(
            f"{changed} of {size} elements changed, and the index has {delta.index_bytes} of {len(packed)} "
            "bytes"
        )
    # All checks come before the first write: indices must be increasing and within the tensor, and there
    # must be one value for each. A damaged payload must neither write out of bounds nor half of a tensor.
    values = _unpack(packed[delta.index_bytes :], width, most=changed)
    if delta.coding == "int32":
        absolute = _unpack(packed[: delta.index_bytes], 4, most=changed).view("<i4").astype(np.int64)
        fits = len(absolute) == changed and (not changed or (absolute[0] >= 0 and absolute[-1] < size))
        fits = fits and bool((np.diff(absolute) > 0).all())
        parts = iter((absolute,))
    else:
        gaps = _unpack(packed[: delta.index_bytes], 2, most=changed + size // _ESCAPE)
        count = len(gaps) - int(np.count_nonzero(gaps == _ESCAPE))
        fits = count == changed and int(gaps.sum(dtype=np.int64)) + count <= size
        parts = _indices(gaps)
    if not fits or len(values) != changed:
        raise _damaged(
            f"its {len(values)} values or its indices are not {changed} changes of {size} elements"
        )
    words = data.view(_WORDS[width])
    written = 0
    for indices in parts:
        words[indices] = values[written : written + len(indices)]
        written += len(indices)


def _width(dtype: torch.dtype) -> int:
    """Width in bytes of the integers as which elements are compared; a complex128 is two of them."""
    return min(dtype.itemsize, 8)


def _whole(new: Bytes, width: int) -> Delta:
    return Delta("whole", len(new) // width, 0, new.data)


def _changes(old: Bytes, new: Bytes, width: int, most: int) -> tuple[Gaps, npt.NDArray[Any]] | None:
    """Gaps (with escapes) and new values of the elements that differ; None if they are more than `most`."""
    gaps = [np.empty(0, "<u2")]
    values = [np.empty(0, _WORDS[width])]
    count = 0
    last = -1
    for start in range(0, len(new), _BLOCK):
        block = new[start : start + _BLOCK]
        indices = _differences(old[start : start + _BLOCK], block, width)
        if not len(indices):
            continue
        count += len(indices)
        if count > most:
            return None
        first = start // width
        gaps.append(_gaps(indices, last - first))
        values.append(block.view(_WORDS[width])[indices])
        last = first + int(indices[-1])
    return np.concatenate(gaps), np.concatenate(values)


def _differences(old: Bytes, new: Bytes, width: int) -> Indices:
    """Indices of the elements of a block that differ."""
    # The comparison's booleans are tested eight at a time, as 64-bit integers: few of these eights have a
    # difference, and only those are searched.
    differ = old.view(_WORDS[width]) != new.view(_WORDS[width])
    even = len(differ) // 8 * 8
    eights = np.flatnonzero(differ[:even].view("<u8") != 0)
    lane = np.flatnonzero(differ[:even].reshape(-1, 8)[eights])
    indices = eights[lane // 8] * 8 + lane % 8
    if even == len(differ):
        return indices
    return np.concatenate([indices, even + np.flatnonzero(differ[even:])])


def _gaps(indices: Indices, last: int) -> Gaps:
    """Increasing indices as gaps; the first gap is counted from `last`."""
    gaps = np.diff(indices, prepend=last) - 1
    if gaps.max() < _ESCAPE:
        return gaps.astype("<u2")
    escapes = gaps // _ESCAPE
    stream = np.full(len(gaps) + int(escapes.sum()), _ESCAPE, "<u2")
    stream[np.arange(len(gaps)) + np.cumsum(escapes)] = gaps % _ESCAPE
    return stream


def _indices(gaps: Gaps) -> Iterator[Indices]:
    """The indices that the gaps encode, in parts."""
    last = -1
    for start in range(0, len(gaps), _CHANGES):
        part = gaps[start : start + _CHANGES]
        steps = part.astype(np.int64)
        jumps = part == _ESCAPE
        steps += ~jumps
        steps[0] += last
        ends = np.cumsum(steps, out=steps)
        last = int(ends[-1])
        yield ends[~jumps] if jumps.any() else ends


def _pack(stream: npt.NDArray[Any]) -> bytes:
    """A stream of integers as byte planes, compressed if that is shorter."""
    if not len(stream):
        return b""
    planes = np.ascontiguousarray(stream.view(np.uint8).reshape(len(stream), -1).T)
    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(planes.data)
    return _ZSTD + packed if len(packed) < planes.size else _RAW + planes.tobytes()


def _unpack(packed: memoryview, width: int, most: int) -> npt.NDArray[Any]:
    """The integers of a packed stream. Raises `PolicyError` if they are more than `most`, before allocating
    memory for them.
    """
    if not len(packed):
        return np.empty(0, _WORDS[width])
    kind = bytes(packed[:1])
    body = packed[1:]
    try:
        if kind == _ZSTD:
            size = zstandard.frame_content_size(body)
            if not 0 <= size <= most * width:
                raise _damaged(f"a stream of {size} bytes for at most {most} integers of {width}")
            body = memoryview(zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise _damaged(str(error)) from error
    if kind not in (_RAW, _ZSTD) or len(body) % width or len(body) > most * width:
        raise _damaged(f"a stream of {len(body)} bytes for at most {most} integers of {width}")
    planes = np.frombuffer(body, np.uint8).reshape(width, -1)
    return np.ascontiguousarray(planes.T).reshape(-1).view(_WORDS[width])


def _damaged(why: str) -> PolicyError:
    return PolicyError(f"A delta's payload is damaged: {why}. Install a full version.")
