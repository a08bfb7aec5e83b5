"""Rows of different lengths as one sequence, in which what they share stands once.

Branches of a rollout share their beginnings, and the rollouts of a group their prompt. Here every token of a
shared beginning is computed once and attended to by all that follow it, and nothing is padded but attention
itself. What comes out is what whole rows would give, up to rounding (sharing a group's prompt in training:
Prefix Grouper, arXiv 2506.05433; here for any tree).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from harnessgym.tokens import IdArray

Index = npt.NDArray[np.int64]
_WORTH = 8
"""Shorter shared beginnings are computed again."""
_WASTE = 1.25
"""Rows attend together as long as padding makes that at most so many times the work of each alone,"""
_SMALL = 1 << 18
"""or adds no more than so many products of a query with a key: calling a kernel costs about as much."""


@dataclass(frozen=True, slots=True)
class PackedSpan:
    """Rows that attend in one product, and the places of their tokens in the sequence."""

    queries_SQ: Tensor
    """Each row's own tokens, padded with its last one, int64 [S, Q]."""
    keys_SK: Tensor
    """What each row consists of: what it shares, padded, and then its own as in `queries_SQ`, int64 [S,
    K]."""
    mask_SQK: Tensor | None
    """True where a query may look, bool [S, Q, K]; None where no row shares anything: queries look back."""
    real: Tensor
    """Which of the S * Q queries are no padding, int64."""


@dataclass(frozen=True, slots=True)
class Packed:
    """Some rows in one sequence of N tokens: span by span, in each row by row."""

    ids_N: Tensor
    """int64 [N]"""
    positions_N: Tensor
    """Of each token in its row, int64 [N]."""
    spans: tuple[PackedSpan, ...]
    paths: tuple[Index, ...]
    """By row: where its tokens stand, int64 [T]."""

    def trained(self, masks: Sequence[IdArray]) -> tuple[Tensor, Tensor]:
        """Of the tokens with mask 1, row after row: where the token before each stands, and its id, int64
        [M] both.
        """
        chosen = [np.flatnonzero(mask) for mask in masks]
        before = np.concatenate([path[index - 1] for path, index in zip(self.paths, chosen, strict=True)])
        places = np.concatenate([path[index] for path, index in zip(self.paths, chosen, strict=True)])
        device = self.ids_N.device
        return torch.from_numpy(before).to(device), self.ids_N[torch.from_numpy(places).to(device)]


@dataclass(frozen=True, slots=True)
class _Part:
    """A row, as far as no row before it in sorted order has it."""

    row: int
    shared: int
    """Tokens that it shares with the row before it in sorted order."""
    fresh: int
    """Tokens of its own."""

    @property
    def work(self) -> int:
        """Queries times keys."""
        return self.fresh * (self.shared + self.fresh)


def pack(rows: Sequence[IdArray], device: torch.device | None = None) -> Packed:
    """Put rows, int [T] each and none empty, into one sequence. Deterministic."""
    ordered = sorted(range(len(rows)), key=lambda number: _key(rows[number]))
    parts = _parts(rows, ordered)
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
        ids[own], positions[own] = (
            rows[part.row][part.shared :],
            np.arange(part.shared, part.shared + part.fresh),
        )
    spans = tuple(_span(group, paths, device) for group in groups)
    return Packed(_tensor(ids, device), _tensor(positions, device), spans, paths)


def shared_beginning(a: IdArray, b: IdArray) -> int:
    """How many first tokens two rows have in common."""
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length


def packed_size(rows: Sequence[IdArray]) -> int:
    """Tokens of the sequence that `pack` would make, without making it."""
    ordered = sorted(range(len(rows)), key=lambda number: _key(rows[number]))
    return sum(part.fresh for part in _parts(rows, ordered))


def micro_batches(units: Sequence[Sequence[IdArray]], max_tokens: int) -> list[list[int]]:
    """Indices of units in batches that pack into at most `max_tokens` (a larger unit goes alone), similar
    ones together.

    A unit are rows that stay together, int [T] each.
    """
    batches: list[list[int]] = []
    rows: list[IdArray] = []
    for index in sorted(range(len(units)), key=lambda number: (_key(units[number][0]), number)):
        joined = [*rows, *units[index]]
        if rows and packed_size(joined) <= max_tokens:
            batches[-1].append(index)
            rows = joined
        else:
            batches.append([index])
            rows = list(units[index])
    return batches


def _key(row: IdArray) -> bytes:
    """Sorts rows so that those which begin alike are neighbours."""
    return np.ascontiguousarray(row, dtype=np.int32).tobytes()


def _parts(rows: Sequence[IdArray], ordered: Sequence[int]) -> list[_Part]:
    """In sorted order each row begins with the longest beginning that it shares with any before it."""
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
    """Parts of similar shape together; those that share nothing apart from the others."""
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
    """By row, its tokens' places: those of what it shares, then its own."""
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
        own[:], own[: part.fresh] = path[-1], path[part.shared :]
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
