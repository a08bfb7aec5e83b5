"""Text spaces for the output of programs: a large charset, and a function that makes any text fit.

A gymnasium space is finite and the output of programs is not. So texts are made to fit: characters outside
the charset become U+FFFD, and the middle of a long text is replaced by a mark that says how much is missing.

`gymnasium.vector.AsyncVectorEnv` reads a `Text` from shared memory only once, when it is constructed, and
never shows later writes. `ShortText` is stored there as numpy strings, so every write is visible.
"""

import re
from typing import Any

import numpy as np
from gymnasium.spaces import Text
from gymnasium.vector.utils import read_from_shared_memory, write_to_shared_memory
from numpy.typing import NDArray

_BLOCKS = (
    (0x20, 0x7E),  # ASCII
    (0xA0, 0x17F),  # Latin-1, Latin Extended-A
    (0x370, 0x4FF),  # Greek, Cyrillic
    (0x2010, 0x205E),  # punctuation
    (0x20A0, 0x20BF),  # currencies
    (0x2100, 0x214F),  # letterlike symbols
    (0x2190, 0x23FF),  # arrows, mathematical and technical symbols
    (0x2500, 0x25FF),  # boxes and blocks
    (0x2713, 0x2718),  # check marks and crosses
)
REPLACEMENT = "\ufffd"
CHARSET = frozenset(
    {"\n", "\t", "\r", "\xa0", REPLACEMENT}
    | {chr(code) for first, last in _BLOCKS for code in range(first, last + 1) if chr(code).isprintable()}
)
_FOREIGN = re.compile(f"[^{re.escape(''.join(sorted(CHARSET)))}]")
_MARK = "\n[... {} characters left out ...]\n"
_LOST = "[... {} bytes left out ...]\n"


_SAMPLED = 120
_PRINTABLE = np.array([chr(code) for code in range(0x20, 0x7F)])


class ShortText(Text):
    """Texts of at most `most` characters of the charset. Samples without a mask are short printable ASCII."""

    def __init__(self, most: int, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(most, min_length=0, charset=CHARSET, seed=seed)

    def sample(
        self,
        mask: tuple[int | None, NDArray[np.int8] | None] | None = None,
        probability: tuple[int | None, NDArray[np.float64] | None] | None = None,
    ) -> str:
        """See `Text.sample`."""
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        return self.words(0, min(_SAMPLED, self.max_length))

    def words(self, least: int, most: int) -> str:
        """From `least` to `most` random printable characters."""
        size = int(self.np_random.integers(least, most + 1))
        return "".join(self.np_random.choice(_PRINTABLE, size=size))


@read_from_shared_memory.register(ShortText)
def _read(space: ShortText, shared_memory: Any, n: int = 1) -> NDArray[np.str_]:  # noqa: ARG001
    """A view of the texts of all `n` environments."""
    return np.frombuffer(shared_memory.get_obj(), dtype=f"=U{space.max_length}")


@write_to_shared_memory.register(ShortText)
def _write(space: ShortText, index: int, value: str, shared_memory: Any) -> None:
    """Write a text into its slot, four bytes per character as in gymnasium's memory for a `Text`.

    numpy strips trailing NULs, but no text of the charset has any.
    """
    np.frombuffer(shared_memory.get_obj(), dtype=f"=U{space.max_length}")[index] = value


def fit(text: str, most: int, missing: int = 0) -> str:
    """`text` made to fit a `ShortText` of `most` characters; a text that fits is returned unchanged.

    If `missing` bytes were lost before its first character, a mark says so.
    """
    clean = _FOREIGN.sub(REPLACEMENT, text)
    if missing:
        clean = _LOST.format(missing) + clean
    if len(clean) <= most:
        return clean
    # The mark is measured with the largest number it can hold, so the result is never too long.
    room = most - len(_MARK.format(len(clean)))
    if room < 2:
        return clean[:most]
    head = room // 2
    tail = room - head
    return clean[:head] + _MARK.format(len(clean) - room) + clean[-tail:]
