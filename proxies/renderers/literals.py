"""Keeps control tokens that a conversation quotes from becoming control tokens of the prompt.

A file, a web page or a tool result may contain `<|im_end|>`. Rendered into a prompt and tokenised, it would
end the turn. Such texts get a mark before the template sees them, so that the template's own control tokens
can be told from quoted ones.

In the policy's own messages only the tokens that frame turns count as quoted: the policy cannot have sampled
those inside a turn. It may have sampled others, such as those around a tool call that did not parse.
"""

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer

from harnessgym.tokens import PieceTokens
from proxies.renderers.long_texts import LONG, encode_text, tokenised
from proxies.renderers.pieces import Pieces


class Literals:
    """Marks quoted control tokens of one tokenizer, and tokenises marked texts."""

    def __init__(self, tokenizer: Tokenizer, frame: str) -> None:
        """`frame` is a text with the control tokens that separate turns."""
        self._tokenizer = tokenizer
        special = [
            token
            for token in tokenizer.get_added_tokens_decoder().values()
            if token.special and token.content
        ]
        self._special: dict[str, AddedToken] = {token.content: token for token in special}
        self._any = _one_of(self._special)
        self._frame = _one_of([text for text in self._special if text in frame])
        self._mark = f"q{secrets.token_hex(8)}q"
        """Random: no client can know it, so none can forge it."""
        self._text_only: Tokenizer | None = None
        self._pieces = Pieces(tokenizer, self._piece)

    def mark(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages or tools for a template, with a mark inside every control token that they quote."""
        return [
            self._marked(message, self._frame if message.get("role") == "assistant" else self._any)
            for message in messages
        ]

    def unmark(self, text: str) -> str:
        """The text without marks."""
        return text.replace(self._mark, "")

    def encode(self, text: str) -> PieceTokens:
        """The tokens of a text, in which marked control tokens are plain text. May raise `LongText`."""
        pieces = self._pieces.cut(text)
        if len(text) < LONG or self._pieces.unknown(pieces) < LONG:
            return self._pieces.tokens(pieces)
        return tokenised(text, self._whole)

    def _whole(self, text: str) -> PieceTokens:
        return self._pieces.tokens(self._pieces.cut(text))

    def _piece(self, text: str) -> list[int]:
        if self._any is None or self._mark not in text:
            return self._encode(text)
        out: list[int] = []
        pieces = self._any.split(text)
        parsed = ""
        # Even pieces are text, odd ones the template's control tokens. A piece with a mark is tokenised
        # apart as plain text; the stretches between are tokenised whole, exactly as without marks.
        for index in range(0, len(pieces), 2):
            piece = pieces[index]
            if self._mark in piece:
                out += self._encode(parsed) + self._as_text(self._stripped(pieces, index))
                piece = parsed = ""
            parsed += piece + "".join(pieces[index + 1 : index + 2])
        return out + self._encode(parsed)

    def _marked(self, value: Any, pattern: "re.Pattern[str] | None") -> Any:
        if isinstance(value, str) and pattern is not None:
            return pattern.sub(lambda found: found[0][0] + self._mark + found[0][1:], value)
        if isinstance(value, dict):
            return {self._marked(key, pattern): self._marked(item, pattern) for key, item in value.items()}
        return [self._marked(item, pattern) for item in value] if isinstance(value, list) else value

    def _stripped(self, pieces: list[str], index: int) -> str:
        """A piece of text without the whitespace that the neighbouring control tokens absorb."""
        piece = self.unmark(pieces[index])
        if index and self._special[pieces[index - 1]].rstrip:
            piece = piece.lstrip()
        if index + 1 < len(pieces) and self._special[pieces[index + 1]].lstrip:
            piece = piece.rstrip()
        return piece

    def _encode(self, text: str) -> list[int]:
        return encode_text(self._tokenizer, text) if text else []

    def _as_text(self, text: str) -> list[int]:
        """The tokens of text in which control tokens have no meaning."""
        # The setting belongs to a whole tokenizer, so plain text needs a second one.
        if self._text_only is None:
            self._text_only = Tokenizer.from_str(self._tokenizer.to_str())
            self._text_only.no_truncation()
            self._text_only.no_padding()
            self._text_only.encode_special_tokens = True
        return encode_text(self._text_only, text) if text else []


def _one_of(texts: Collection[str]) -> "re.Pattern[str] | None":
    """A pattern that matches any of the texts, the longest first; None if there are none."""
    return (
        re.compile("(" + "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) + ")")
        if texts
        else None
    )
