"""Finds the pieces of a prompt that earlier prompts of its session have, so that they are stored once."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count, repeat, takewhile

import numpy as np

from harnessgym.store.calls import Segment
from harnessgym.store.token_copies import TokenCopy
from harnessgym.tokens import IdArray, PieceTokens, TokenArray, TokenIds

_LEAST = 24
"""Tokens of the shortest range that is copied. To say where it is takes about as many bytes."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A stored prompt."""

    segment_id: str
    pieces: tuple[TokenArray, ...]
    starts: tuple[int, ...]
    """The index of each piece's first token."""


class SharedPieces:
    """Where the pieces of a session's stored prompts are.

    Pieces are told apart by identity, so a piece must be the same object in every prompt that shares it.
    """

    def __init__(self) -> None:
        self._places: dict[int, tuple[_Prompt, int]] = {}
        """Maps the identity of a piece to the prompt stored last that has it, and the piece's index there."""
        self._latest: _Prompt | None = None

    def copies(self, ids: TokenIds) -> tuple[TokenCopy, ...]:
        """The ranges of a prompt's tokens that stored segments have, in order."""
        if not isinstance(ids, PieceTokens):
            return ()
        found = list[TokenCopy]()
        for copy in self._found(ids.pieces):
            last = found[-1] if found else None
            if last is not None and _follows(last, copy):
                found[-1] = TokenCopy(last.at, last.source, last.start, last.length + copy.length)
            elif copy.length:
                found.append(copy)
        return tuple(copy for copy in found if copy.length >= _LEAST)

    def add(self, segment: Segment) -> None:
        """Add a segment that is committed. May be called from another thread."""
        if not isinstance(segment.ids, PieceTokens):
            return
        pieces = segment.ids.pieces
        starts = tuple(accumulate(map(len, pieces), initial=0))
        self._latest = _Prompt(segment.id, pieces, starts)
        self._places.update(zip(map(id, pieces), zip(repeat(self._latest), count()), strict=False))

    def _found(self, pieces: tuple[TokenArray, ...]) -> Iterator[TokenCopy]:
        latest = self._latest
        number = at = 0
        while number < len(pieces):
            piece = pieces[number]
            # First at the same place: a piece such as an end of turn occurs many times, and only the right
            # occurrence continues the range before it.
            beside = latest is not None and number < len(latest.pieces)
            if latest is not None and beside and latest.pieces[number] is piece:
                place: tuple[_Prompt, int] | None = (latest, number)
            else:
                place = self._places.get(id(piece))
            if place is not None:
                prompt, first = place
                pairs = zip(pieces[number:], prompt.pieces[first:], strict=False)
                shared = sum(1 for _ in takewhile(_is_one, pairs))
                length = prompt.starts[first + shared] - prompt.starts[first]
                yield TokenCopy(at, prompt.segment_id, prompt.starts[first], length)
                number += shared
                at += length
                continue
            # What changes from prompt to prompt, such as a clock in the system text, is mostly a small part
            # of the piece at the same place.
            if latest is not None and beside:
                yield from _ends(piece, at, latest, number)
            number += 1
            at += len(piece)


def _is_one(pair: tuple[TokenArray, TokenArray]) -> bool:
    return pair[0] is pair[1]


def _ends(piece: TokenArray, at: int, prompt: _Prompt, number: int) -> Iterator[TokenCopy]:
    """The common beginning and the common end of a piece, which begins at `at`, and a stored one."""
    other = prompt.pieces[number]
    shorter = min(len(piece), len(other))
    if shorter < _LEAST:
        return
    ours, theirs = (np.frombuffer(each, dtype="=i4") for each in (piece, other))
    before = _equal(ours[:shorter], theirs[:shorter])
    after = _equal(ours[::-1][: shorter - before], theirs[::-1][: shorter - before])
    yield TokenCopy(at, prompt.segment_id, prompt.starts[number], before)
    end = prompt.starts[number + 1]
    yield TokenCopy(at + len(piece) - after, prompt.segment_id, end - after, after)


def _equal(one: IdArray, other: IdArray) -> int:
    """How many leading ids of two arrays of one length are equal."""
    different = np.flatnonzero(one != other)
    return int(different[0]) if len(different) else len(one)


def _follows(last: TokenCopy, copy: TokenCopy) -> bool:
    return (
        copy.source == last.source
        and copy.at == last.at + last.length
        and copy.start == last.start + last.length
    )
