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

from collections.abc import Callable, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TypeVar, cast

from tokenizers import Tokenizer

LONG = 16_384
"""Characters from which a text is long. As many take about 4 ms."""

_PIECE = 1 << 18
"""Characters that are tokenised at a time, to see whether a text is far too long."""
_LEAST_CHARACTERS = 8
"""Characters for each token that is allowed, from which on a text is likely too long."""
_MARGIN = 1.1
"""A text that is tokenised in pieces may have a few tokens more than as a whole."""

Encode = Callable[[str], Sequence[int]]
T = TypeVar("T", bound=Sequence[int])


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

    def encode(self, most: int) -> Sequence[int]:
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
        self._tokens: dict[tuple[Encode, str], Sequence[int]] = {}
        self._reset: Token[KnownTokens | None] | None = None
        self.complete = False
        """Whether texts that are not known are tokenised at once, however long."""

    def add(self, long: LongText, ids: Sequence[int]) -> None:
        """Add the tokens of a text."""
        self._tokens[long.encoding, long.text] = ids

    def get(self, text: str, encode: Callable[[str], T]) -> T | None:
        """The tokens of a text, which must not be changed; None if they are not known."""
        return cast("T | None", self._tokens.get((encode, text)))

    def __enter__(self) -> None:
        self._reset = _KNOWN.set(self)

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._reset is not None
        _KNOWN.reset(self._reset)


_KNOWN: ContextVar[KnownTokens | None] = ContextVar("known tokens", default=None)


def tokenised(text: str, encode: Callable[[str], T]) -> T:
    """`encode(text)`. The caller must not change the result.

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
    """The tokens of a text. The interpreter's lock is released meanwhile."""
    # Of the tokenizer's methods, only those for batches release the lock. This one also leaves out offsets,
    # which takes a quarter less time.
    (encoded,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids: list[int] = encoded.ids
    return ids
