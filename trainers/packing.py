"""Packs rows of different lengths into one sequence that holds shared prefixes once.

Branches of a rollout share prefixes, and the rollouts of a group share their prompt. Every token of a shared
prefix is computed once and attended to by all rows that continue it; only attention is padded. The result
equals that of whole rows, up to rounding. (Prefix Grouper, arXiv 2506.05433, shares a group's prompt in
training; this shares the prefixes of any tree.)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harnessgym.routed_experts import RowExperts
from harnessgym.tokens import IdArray

Index = npt.NDArray[np.int64]
Routing = Sequence[RowExperts | None] | None
"""The recorded experts of each of some rows; None if no row has any."""
_WORTH = 8
"""A shared prefix with fewer tokens than this is computed again for each row."""
_WASTE = 1.25
"""Rows attend in one product if padding multiplies the work by at most this factor,"""
_SMALL = 1 << 18
"""or adds at most this many query-key products, which is about the cost of one kernel call."""


@dataclass(frozen=True, slots=True)
class PackedSpan:
    """Rows that attend in one product, and the positions of their tokens in the packed sequence."""

    queries_SQ: Tensor
    """Each row's own tokens, padded with its last one, int64 [S, Q]."""
    keys_SK: Tensor
    """Each row's shared prefix, padded, followed by its own tokens as in `queries_SQ`, int64 [S, K]."""
    mask_SQK: Tensor | None
    """True where a query may attend, bool [S, Q, K]; None for plain causal attention, if no row has a shared
    prefix."""
    real: Tensor
    """Indices of the S * Q queries that are not padding, int64."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Some rows in one sequence of N tokens: span by span, in each row by row."""

    ids_N: Tensor
    """int64 [N]"""
    positions_N: Tensor
    """Each token's position in its row, int64 [N]."""
    spans: tuple[PackedSpan, ...]
    paths: tuple[Index, ...]
    """Per row the packed positions of its tokens, int64 [T]."""
    order: tuple[int, ...]
    """The rows, sorted: each shares its prefix with the one before."""
    masks: dict[int | None, Any] = field(default_factory=dict, compare=False, repr=False)
    """What an attention made of the rows for a sliding window, to be used in all layers."""

    def intervals(self) -> tuple[Tensor, Tensor]:
        """When a walk over the tree of prefixes enters each token, and when it leaves what continues it,
        int64 [N] each. A token attends to those that were entered, and not left, when the walk enters it.
        """
        enter, leave = np.empty(len(self.ids_N), np.int64), np.empty(len(self.ids_N), np.int64)
        before = np.empty(0, np.int64)
        count = 0
        for row in self.order:
            path = self.paths[row]
            shared = shared_beginning(path, before)
            leave[before[shared:]] = count
            fresh = len(path) - shared
            enter[path[shared:]] = np.arange(count, count + fresh)
            before, count = path, count + fresh
        leave[before] = count
        device = self.ids_N.device
        return _tensor(enter, device), _tensor(leave, device)

    def trained(self, masks: Sequence[IdArray]) -> tuple[Tensor, Tensor]:
        """For the tokens with mask 1, row after row: the packed position of the token before, and the token's
        id, both int64 [M].
        """
        chosen = [np.flatnonzero(mask) for mask in masks]
        before = np.concatenate([path[index - 1] for path, index in zip(self.paths, chosen, strict=True)])
        places = np.concatenate([path[index] for path, index in zip(self.paths, chosen, strict=True)])
        device = self.ids_N.device
        return torch.from_numpy(before).to(device), self.ids_N[torch.from_numpy(places).to(device)]


@dataclass(frozen=True, slots=True)
class _Part:
    """The suffix of a row that no earlier row in sorted order has."""

    row: int
    shared: int
    """Tokens that it shares with the row before it in sorted order."""
    fresh: int
    """Tokens of its own."""

    @property
    def work(self) -> int:
        """Queries times keys."""
        return self.fresh * (self.shared + self.fresh)


def pack(
    rows: Sequence[IdArray], device: torch.device | None = None, keys: Sequence[IdArray] | None = None
) -> Packed:
    """Pack rows, int [T] each and none empty, into one sequence. Deterministic.

    Rows share what their `keys` (`sharing_keys`) have in common: their tokens, if there are none.
    """
    keys = rows if keys is None else keys
    ordered = sorted(range(len(rows)), key=lambda number: _key(keys[number]))
    parts = _parts(keys, ordered)
    groups = _groups(part for part in parts if part.fresh)
    starts = dict[int, int]()
    count = 0
    for part in (part for group in groups for part in group):
        starts[part.row], count = count, count + part.fresh
    paths = _paths(parts, starts, len(rows))
    ids = np.empty(count, np.int64)
    positions = np.empty(count, np.int64)
    for part in parts:
        own = paths[part.row][part.shared :]
        ids[own] = rows[part.row][part.shared :]
        positions[own] = np.arange(part.shared, part.shared + part.fresh)
    spans = tuple(_span(group, paths, device) for group in groups)
    return Packed(_tensor(ids, device), _tensor(positions, device), spans, paths, tuple(ordered))


def sharing_keys(rows: Sequence[IdArray], routing: Routing) -> Sequence[IdArray]:
    """What stands for each row, int32 [T], where it is decided which prefixes are shared.

    Keys are equal exactly where tokens and their recorded experts are. Two rows whose engines chose other
    experts for a common prefix have other hidden states there, so it is computed for each. Without routing
    the keys are the rows themselves.
    """
    if routing is None:
        return rows
    numbers: dict[tuple[int, bytes], int] = {}
    out = []
    for row, routed in zip(rows, routing, strict=True):
        experts = [b""] * len(row) if routed is None else _experts_of_tokens(routed)
        pairs = zip(row.tolist(), experts, strict=True)
        out.append(np.array([numbers.setdefault(pair, len(numbers)) for pair in pairs], np.int32))
    return out


def shared_beginning(a: npt.NDArray[np.integer[Any]], b: npt.NDArray[np.integer[Any]]) -> int:
    """The length of two rows' common prefix."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length


def packed_size(rows: Sequence[IdArray]) -> int:
    """The number of tokens in the sequence that `pack` would return."""
    ordered = sorted(range(len(rows)), key=lambda number: _key(rows[number]))
    return sum(part.fresh for part in _parts(rows, ordered))


def micro_batches(
    units: Sequence[Sequence[IdArray]],
    max_tokens: int,
    size: Callable[[Sequence[IdArray]], int] = packed_size,
) -> list[list[int]]:
    """Indices of units in batches of at most `max_tokens`; a larger unit is a batch of its own.

    A unit is a list of rows, int [T] each, that stay together. Units with common prefixes are neighbours.
    `size` says how many tokens a pass over rows has.
    """
    batches: list[list[int]] = []
    rows: list[IdArray] = []
    for index in sorted(range(len(units)), key=lambda number: (_key(units[number][0]), number)):
        joined = [*rows, *units[index]]
        if rows and size(joined) <= max_tokens:
            batches[-1].append(index)
            rows = joined
        else:
            batches.append([index])
            rows = list(units[index])
    return batches


def _experts_of_tokens(routed: RowExperts) -> list[bytes]:
    """Each token's experts as bytes; none where they are not recorded."""
    flat = np.ascontiguousarray(routed.experts).reshape(len(routed.experts), -1)
    return [
        experts.tobytes() if recorded else b""
        for experts, recorded in zip(flat, routed.recorded, strict=True)
    ]


def _key(row: IdArray) -> bytes:
    """A sort key by which rows with a common prefix are neighbours."""
    # The bytes are little-endian, so this is not numerical order. Any total order that compares the rows
    # token by token puts common prefixes together.
    return np.ascontiguousarray(row, dtype=np.int32).tobytes()


def _parts(rows: Sequence[IdArray], ordered: Sequence[int]) -> list[_Part]:
    """The rows' suffixes in sorted order."""
    # In sorted order the longest prefix that a row shares with any earlier row is the one that it shares
    # with the row directly before it, so neighbours are the only pairs to compare.
    parts: list[_Part] = []
    before: IdArray = np.empty(0, np.int32)
    for number in ordered:
        row = rows[number]
        shared = shared_beginning(before, row)
        shared = shared if shared >= _WORTH or shared == len(row) else 0
        parts.append(_Part(number, shared, len(row) - shared))
        before = row
    return parts


def _groups(parts: Iterable[_Part]) -> list[list[_Part]]:
    """Parts of similar shape, grouped. Parts without a shared prefix have groups of their own, which need no
    mask.
    """
    groups: list[list[_Part]] = []
    real = 0
    for part in sorted(
        parts, key=lambda part: (part.shared > 0, -part.shared - part.fresh, -part.fresh, part.row)
    ):
        last = groups[-1] if groups else []
        real += part.work
        if (
            last
            and (last[0].shared > 0) == (part.shared > 0)
            and _padded_work([*last, part]) <= _WASTE * real + _SMALL
        ):
            last.append(part)
        else:
            groups.append([part])
            real = part.work
    return groups


def _padded_work(parts: Sequence[_Part]) -> int:
    fresh = max(part.fresh for part in parts)
    shared = max(part.shared for part in parts)
    return len(parts) * fresh * (shared + fresh)


def _paths(parts: Sequence[_Part], starts: dict[int, int], rows: int) -> tuple[Index, ...]:
    """Per row the packed positions of its tokens: those of its shared prefix, then its own."""
    paths: list[Index] = [np.empty(0, np.int64)] * rows
    path: Index = np.empty(0, np.int64)
    for part in parts:
        start = starts.get(part.row, 0)
        path = np.concatenate([path[: part.shared], np.arange(start, start + part.fresh)])
        paths[part.row] = path
    return tuple(paths)


def _span(parts: Sequence[_Part], paths: Sequence[Index], device: torch.device | None) -> PackedSpan:
    most = max(part.fresh for part in parts)
    widest = max(part.shared for part in parts)
    queries = np.empty((len(parts), most), np.int64)
    shared = np.zeros((len(parts), widest), np.int64)
    for part, own, before in zip(parts, queries, shared, strict=True):
        path = paths[part.row]
        # Padding repeats the row's last token: it needs a valid index, and `real` drops its results.
        own[:] = path[-1]
        own[: part.fresh] = path[part.shared :]
        before[: part.shared] = path[: part.shared]
    fresh_S = np.array([part.fresh for part in parts])
    real = np.flatnonzero(np.arange(most) < fresh_S[:, None])
    keys = np.concatenate((shared, queries), axis=1)
    mask = None
    if widest:
        shared_S = np.array([part.shared for part in parts])
        before_SQK = np.broadcast_to(
            (np.arange(widest) < shared_S[:, None])[:, None], (len(parts), most, widest)
        )
        own_SQK = np.broadcast_to(np.tri(most, dtype=bool), (len(parts), most, most))
        mask = _tensor(np.concatenate((before_SQK, own_SQK), axis=2), device)
    return PackedSpan(_tensor(queries, device), _tensor(keys, device), mask, _tensor(real, device))


def _tensor(array: npt.NDArray[np.generic], device: torch.device | None) -> Tensor:
    return torch.from_numpy(array).to(device)


def gathered(x_BHND: Tensor, index_SQ: Tensor) -> Tensor:
    """The tokens at these positions of a batch of one, [S, heads, Q, D]."""
    return (
        x_BHND[0]
        .index_select(1, index_SQ.flatten())
        .view(x_BHND.shape[1], *index_SQ.shape, -1)
        .transpose(0, 1)
    )
