"""Tokenises prompts piece by piece, and keeps the tokens of pieces.

A harness that rewrites its history sends much the same messages in every turn, behind one that has changed.
A prompt is cut at the tokenizer's control tokens, which chat templates put around messages, and a piece that
was seen before is not tokenised again.

A cut changes no token. Tokenizers find control tokens in the raw text before they do anything else, the
leftmost first and of those the longest, and tokenise what lies between them piece by piece. The pattern here
finds the same ones. A control token that absorbs the whitespace beside it, that must stand between words, or
that is found only in normalised text is no place to cut. A piece begins with its control token, so that what
follows it is not the beginning of a text for tokenizers that treat it in a special way.
"""

import re
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from tokenizers import AddedToken, Tokenizer

from harnessgym.tokens import PieceTokens, TokenArray

KEPT = 1 << 24
"""Characters of the pieces that are kept. The least recently used are forgotten."""
_LONGEST = 1 << 17
"""Characters of the longest piece that is kept, so that a few huge ones do not displace all others."""


class Pieces:
    """The pieces of one tokenizer's prompts. Several threads may use it."""

    def __init__(self, tokenizer: Tokenizer, encode: Callable[[str], list[int]], kept: int = KEPT) -> None:
        """`encode` tokenises a piece. The pieces that are kept have at most `kept` characters."""
        added = [token for token in tokenizer.get_added_tokens_decoder().values() if token.content]
        self._encode = encode
        self._seams = frozenset(token.content for token in added if _is_seam(token))
        self._added = _pattern(added)
        self._tokens: OrderedDict[str, TokenArray] = OrderedDict()
        self._most = kept
        self._kept = 0
        self._lock = Lock()

    def cut(self, text: str) -> list[str]:
        """The pieces of a text."""
        if self._added is None:
            return [text]
        starts = [found.start() for found in self._added.finditer(text) if found[0] in self._seams]
        if not starts or starts[0]:
            starts.insert(0, 0)
        return [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]

    def unknown(self, pieces: list[str]) -> int:
        """Characters of the pieces whose tokens are not known."""
        with self._lock:
            return sum(len(piece) for piece in pieces if piece not in self._tokens)

    def tokens(self, pieces: list[str]) -> PieceTokens:
        """The tokens of a text that was cut into these pieces."""
        with self._lock:
            known = [self._tokens.get(piece) for piece in pieces]
            for piece, ids in zip(pieces, known, strict=True):
                if ids is not None:
                    self._tokens.move_to_end(piece)
        return PieceTokens(
            self._new(piece) if ids is None else ids for piece, ids in zip(pieces, known, strict=True)
        )

    def _new(self, piece: str) -> TokenArray:
        ids = TokenArray(self._encode(piece))
        if len(piece) > _LONGEST:
            return ids
        with self._lock:
            # Another thread, or an equal piece of the same text, may have been quicker.
            if (known := self._tokens.setdefault(piece, ids)) is ids:
                self._kept += len(piece)
            while self._kept > self._most:
                self._kept -= len(self._tokens.popitem(last=False)[0])
        return known


def _is_seam(token: AddedToken) -> bool:
    return token.special and not (token.normalized or token.lstrip or token.rstrip)


def _pattern(added: list[AddedToken]) -> "re.Pattern[str] | None":
    """Matches what the tokenizer takes out of the raw text; None if that cannot be said by a pattern."""
    raw = [token.content for token in added if not token.normalized]
    if not raw or any(token.single_word for token in added):
        return None
    return re.compile("|".join(map(re.escape, sorted(raw, key=len, reverse=True))))
