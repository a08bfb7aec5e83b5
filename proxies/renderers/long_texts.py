"""Tokenises long texts outside of the event loop, so that one long prompt keeps no other session waiting.

Rendering is synchronous, and must be: nothing may come between the reading of a session and its change. So a
rendering that meets a long text is given up. The text is tokenised on a thread, and the rendering begins
again, with these tokens at hand:

```python
known = KnownTokens()
while True:
    try:
        with known:
            return render()
    except LongText as long:
        known.add(long, await asyncio.to_thread(long.encode, most))
```
"""

from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType

from tokenizers import Tokenizer

LONG = 16_384
"""Characters from which a text is long. As many take about 5 ms."""

_PIECE = 1 << 18
"""Characters that are tokenised at a time, to see whether a text is far too long."""
_LEAST_CHARACTERS = 8
"""Characters for each token that is allowed, from which on a text is likely too long."""
_MARGIN = 1.1
"""A text that is tokenised in pieces may have a few tokens more than as a whole."""

Encode = Callable[[str], list[int]]


class TooManyTokens(Exception):
    """A text has more tokens than a prompt may have."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"at least {tokens:,} tokens")
        self.tokens = tokens
        """As many were counted, and there are more."""


class LongText(Exception):
    """A rendering needs the tokens of a long text."""

    def __init__(self, text: str, encode: Encode) -> None:
        super().__init__(f"a text of {len(text):,} characters")
        self.text = text
        self.encoding = encode

    def encode(self, most: int) -> list[int]:
        """The tokens of the text. Other threads run meanwhile.

        Raises `TooManyTokens` if there are surely more than `most`. A text that is far too long is not read
        to its end.
        """
        if len(self.text) > max(_PIECE, _LEAST_CHARACTERS * most):
            count = 0
            for at in range(0, len(self.text), _PIECE):
                count += len(self.encoding(self.text[at : at + _PIECE]))
                if count > _MARGIN * most:
                    raise TooManyTokens(count)
        return self.encoding(self.text)


class KnownTokens:
    """The tokens of one request's long texts. As a context it makes `tokenised` look here."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[Encode, str], list[int]] = {}
        self._reset: Token[KnownTokens | None] | None = None
        self.complete = False
        """Whether texts that are not known are tokenised at once, however long."""

    def add(self, long: LongText, ids: list[int]) -> None:
        """Add the tokens of a text."""
        self._tokens[long.encoding, long.text] = ids

    def get(self, text: str, encode: Encode) -> list[int] | None:
        """The tokens of a text, a new list; None if they are not known."""
        ids = self._tokens.get((encode, text))
        return None if ids is None else list(ids)

    def __enter__(self) -> None:
        self._reset = _KNOWN.set(self)

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._reset is not None
        _KNOWN.reset(self._reset)


_KNOWN: ContextVar[KnownTokens | None] = ContextVar("known tokens", default=None)


def tokenised(text: str, encode: Encode) -> list[int]:
    """`encode(text)`.

    Raises `LongText` for a long text whose tokens must be known, but are not: see `KnownTokens`.
    """
    if len(text) < LONG or (known := _KNOWN.get()) is None:
        return encode(text)
    ids = known.get(text, encode)
    if ids is not None:
        return ids
    if known.complete:
        return encode(text)
    raise LongText(text, encode)


def encode_text(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> list[int]:
    """The tokens of a text. For a long one the interpreter's lock is released meanwhile."""
    if len(text) < LONG:
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)
    # Of the tokenizer's methods, only those for batches release the lock.
    (encoded,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return list(encoded.ids)
