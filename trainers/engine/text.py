"""Text of token ids, where a model folder has a tokenizer: for `text`, stop strings and token names."""

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class FolderDetokenizer:
    """Decodes with a folder's tokenizer.json."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._names: dict[int, str] = {}

    @classmethod
    def load(cls, folder: Path) -> "FolderDetokenizer | None":
        """The folder's detokenizer, or None if it has no tokenizer.json."""
        file = folder / "tokenizer.json"
        return cls(Tokenizer.from_file(str(file))) if file.is_file() else None

    def name(self, token: int) -> str:
        """Text of a single token, special tokens included."""
        if token not in self._names:
            self._names[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return self._names[token]

    def stream(self, skip_special_tokens: bool) -> "TextStream":
        """A decoder of one growing completion."""
        return TextStream(self._tokenizer, skip_special_tokens)


class TextStream:
    """Text of a growing completion: each token gives the text it completes (a character may need several
    tokens).
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)

    def decode(self, token: int) -> str:
        """Text that becomes final with this token."""
        return self._stream.step(self._tokenizer, token) or ""
