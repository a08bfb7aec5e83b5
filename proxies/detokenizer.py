"""Decodes token ids to text as they arrive. A character that spans several tokens appears once it is
complete.
"""

import codecs
import re
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders

from harnessgym.errors import PolicyError

_SPACE = "\u2581"
_BYTE = re.compile("<0x([0-9A-F]{2})>")


class TokenTable:
    """The bytes of every token of a vocabulary. One per tokenizer, shared by all sequences.

    Vocabularies are of bytes (byte-level BPE: Qwen, Llama 3, GPT), or of characters that fall back to bytes
    (SentencePiece: Gemma, older Mistral and Llama).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises `PolicyError` unless the tokens of the tokenizer stand for bytes."""
        if _is_byte_level(tokenizer):
            self._bytes_of = _of_byte_level
        elif _falls_back_to_bytes(tokenizer):
            self._bytes_of = _of_characters
        else:
            raise PolicyError(
                "The tokenizer's tokens do not stand for bytes: it is neither a byte-level BPE (Qwen, Llama "
                "3, GPT) nor one that falls back to bytes (Gemma), and only those can be streamed."
            )
        self._tokenizer = tokenizer
        self._known = {
            number: token.content.encode() for number, token in tokenizer.get_added_tokens_decoder().items()
        }

    def __getitem__(self, token: int) -> bytes:
        """Bytes of one token; empty for an id beyond the vocabulary (padded embedding rows)."""
        known = self._known.get(token)
        if known is None:
            text = self._tokenizer.id_to_token(token) or ""
            known = self._known[token] = self._bytes_of(text)
        return known


class Detokenizer:
    """The text of one sequence. For any split into chunks the pieces concatenate to the text of the whole."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """The characters that these tokens complete."""
        return self._decoder.decode(b"".join(self._table[token] for token in ids))

    def flush(self) -> str:
        """What is left when no more tokens come: U+FFFD for an incomplete character."""
        return self._decoder.decode(b"", final=True)


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    decoder = tokenizer.decoder
    return isinstance(decoder, decoders.ByteLevel) or "ByteLevel" in repr(decoder)


def _falls_back_to_bytes(tokenizer: Tokenizer) -> bool:
    """Whether unknown characters are bytes, and `_SPACE` is a space wherever it stands."""
    said = repr(tokenizer.decoder)
    return "ByteFallback" in said and _SPACE in said


def _of_byte_level(token: str) -> bytes:
    return bytes(_BYTE_OF[letter] for letter in token)


def _of_characters(token: str) -> bytes:
    # A sampled text goes on from its prompt, so the space at its beginning is one, though decoders of whole
    # texts may strip it.
    if match := _BYTE.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace(_SPACE, " ").encode()


def _byte_of() -> dict[str, int]:
    """The alphabet of byte-level vocabularies (GPT-2): printable Latin-1 bytes are themselves, the others are
    mapped to U+0100 and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_BYTE_OF = _byte_of()
