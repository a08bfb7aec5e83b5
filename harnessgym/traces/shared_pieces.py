"""Finds the pieces of a prompt that earlier prompts of its session have, so that they are stored once."""

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count, repeat

import numpy as np

from harnessgym.store.calls import Segment
from harnessgym.store.token_copies import TokenCopy
from harnessgym.tokens import IdArray, PieceTokens, TokenArray, TokenIds

_PROMPTS = 4
"""Prompts that are looked through. A harness repeats its latest ones; several agents may take turns."""
_LEAST = 24
"""Tokens of the shortest range that is copied. To say where it is takes about as many bytes."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A stored prompt."""

    segment_id: str
    pieces: tuple[TokenArray, ...]
    starts: "array[int]"
    """The index of each piece's first token, and the number of tokens."""


class SharedPieces:
    """Where the pieces of a session's newest stored prompts are.

    Pieces are told apart by identity, so a piece must be the same object in every prompt that shares it.
    """

    def __init__(self) -> None:
        self._recent: deque[_Prompt] = deque()
        """The prompts that were stored last, newest last."""
        self._places: dict[int, tuple[_Prompt, int]] = {}
        """Maps the identity of a piece to the newest of these prompts that has it, and its index there."""

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
        prompt = _Prompt(segment.id, pieces, array("q", accumulate(map(len, pieces), initial=0)))
        self._recent.append(prompt)
        self._places.update(zip(map(id, pieces), zip(repeat(prompt), count()), strict=False))
        if len(self._recent) > _PROMPTS:
            oldest = self._recent[0]
            for piece in oldest.pieces:
                if self._places.get(id(piece), (None, 0))[0] is oldest:
                    del self._places[id(piece)]
            self._recent.popleft()

    def _found(self, pieces: tuple[TokenArray, ...]) -> Iterator[TokenCopy]:
        latest = self._recent[-1] if self._recent else None
        number = at = 0
        while number < len(pieces):
            piece = pieces[number]
            # First at the same place: a piece such as an end of turn occurs many times, and only the right
            # occurrence continues the range before it.
            place = None if latest is None else (latest, number)
            shared = 0 if place is None else _equal_pieces(pieces, number, *place)
            if not shared and (place := self._places.get(id(piece))) is not None:
                shared = _equal_pieces(pieces, number, *place)
            if place is not None and shared:
                prompt, first = place
                length = prompt.starts[first + shared] - prompt.starts[first]
                yield TokenCopy(at, prompt.segment_id, prompt.starts[first], length)
                number += shared
                at += length
                continue
            # What changes from prompt to prompt, such as a clock in the system text, is mostly a small part
            # of the piece at the same place.
            if latest is not None and number < len(latest.pieces):
                yield from _ends(piece, at, latest, number)
            number += 1
            at += len(piece)


def _equal_pieces(pieces: tuple[TokenArray, ...], number: int, prompt: _Prompt, first: int) -> int:
    """How many pieces from index `number` on are those of a stored prompt from index `first` on."""
    most = min(len(pieces) - number, len(prompt.pieces) - first)
    shared = 0
    while shared < most and pieces[number + shared] is prompt.pieces[first + shared]:
        shared += 1
    return shared


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
