"""Tokens that a prompt has in common with earlier prompts of its session are stored once.

A harness that rewrites its history sends prompts that continue no earlier call, but mostly repeat the one
before. The row of such a segment has only the tokens that are new, and says where the others are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harnessgym.errors import TraceError
from harnessgym.tokens import PieceTokens, TokenArray, TokenIds, as_array


@dataclass(frozen=True, slots=True)
class TokenCopy:
    """A range of a segment's tokens that another segment of its session has too."""

    at: int
    """Where the range begins in the segment."""
    source: str
    """The other segment."""
    start: int
    """Where the range begins in the other segment."""
    length: int

    def to_json(self) -> list[Any]:
        """The form in which it is stored."""
        return [self.at, self.source, self.start, self.length]


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """A segment's tokens as its row has them."""

    length: int
    ids: bytes
    """The tokens outside of `copies`, narrowed."""
    copies: Sequence[Sequence[Any]] | None
    """Rows of `TokenCopy.to_json` in order; None if there are none."""


def own_tokens(ids: TokenIds, copies: Sequence[TokenCopy]) -> TokenIds:
    """The tokens outside of the copied ranges."""
    if not copies:
        return ids
    whole = as_array(ids)
    own = TokenArray()
    at = 0
    for copy in copies:
        own.extend(whole[at : copy.at])
        at = copy.at + copy.length
    own.extend(whole[at:])
    return own


def restored(rows: Mapping[str, StoredTokens]) -> dict[str, TokenIds]:
    """The tokens of segments by id, given the rows of all segments of their sessions.

    Raises `TraceError` if the tokens of one cannot be put together.
    """
    out: dict[str, TokenIds] = {}
    for name in rows:
        path = [name]
        while path:
            row = rows.get(path[-1])
            if row is None or len(path) > len(rows):
                raise TraceError(
                    f"Segment {name}: some of its tokens are those of segment {path[-1]}, which "
                    + ("the store lacks." if row is None else "has some of this one's.")
                )
            missing = next((copy[1] for copy in row.copies or () if copy[1] not in out), None)
            if missing is not None:
                path.append(missing)
                continue
            out.setdefault(path[-1], _together(path[-1], row, out))
            path.pop()
    return out


def _together(name: str, row: StoredTokens, known: Mapping[str, TokenIds]) -> TokenIds:
    copies = [TokenCopy(*fields) for fields in row.copies or ()]
    own = TokenArray.stored(row.ids, row.length - sum(copy.length for copy in copies), name)
    if not copies:
        return own
    pieces = list[TokenArray]()
    at = taken = 0
    for copy in copies:
        between = copy.at - at
        pieces.append(own[taken : taken + between])
        pieces += PieceTokens.of(known[copy.source]).part(copy.start, copy.start + copy.length).pieces
        at = copy.at + copy.length
        taken += between
    ids = PieceTokens([*pieces, own[taken:]])
    if len(ids) != row.length:
        raise TraceError(f"Segment {name}: {len(ids)} tokens are stored, not {row.length}.")
    return ids
