"""Counts the tokens of a turn's reasoning.

A delimiter may be several tokens, or share one with text, so a parser notes where the reasoning is in the
decoded text, and these places are mapped back to bytes and tokens.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

_REPLACED = "\ufffd"


class Spans:
    """Stretches of a text, in characters, in order. False while there are none."""

    def __init__(self) -> None:
        self._edges: list[int] = []
        """Begins and ends in turn."""

    def __bool__(self) -> bool:
        return bool(self._edges)

    def open(self, at: int) -> None:
        """A stretch begins at a character."""
        self._edges.append(at)

    def close(self, at: int) -> None:
        """The open stretch ends before a character."""
        self._edges.append(at)

    def tokens(self, written: Sequence[bytes]) -> int:
        """The number of tokens with a byte in a stretch. `written` are the bytes of each token."""
        data = b"".join(written)
        starts = [0, *accumulate(map(len, written))]
        edges = _bytes_before(data, self._edges)
        if len(edges) % 2:
            edges.append(len(data))
        count = last = 0
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            if begin < end:
                # A token that two stretches share counts once.
                first = max(bisect_right(starts, begin), last + 1)
                last = max(bisect_left(starts, end), last)
                count += max(0, last - first + 1)
        return count


def _bytes_before(data: bytes, places: Sequence[int]) -> list[int]:
    """The number of bytes before each place in the decoded text; places ascend."""
    text = data.decode("utf-8", "replace")
    out: list[int] = []
    at = seen = 0
    for place in places:
        for part in _parts(text[seen:place]):
            at += _invalid(data, at) if part == _REPLACED else len(part.encode())
        seen = max(seen, place)
        out.append(at)
    return out


def _parts(text: str) -> list[str]:
    """The text, cut around each replacement character."""
    if _REPLACED not in text:
        return [text]
    first, *others = text.split(_REPLACED)
    return [first, *(part for other in others for part in (_REPLACED, other))]


def _invalid(data: bytes, at: int) -> int:
    """The number of bytes that were decoded to one replacement character."""
    try:
        data[at : at + 4].decode("utf-8")
    except UnicodeDecodeError as error:
        return error.end if error.start == 0 else len(_REPLACED.encode())
    return len(_REPLACED.encode())
