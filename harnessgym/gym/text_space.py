"""Text spaces for what programs write: a charset that holds most of it, and a way to make any text fit.

What gymnasium samples and checks must be finite, and what a program writes is not. So a text that does not
fit is made to: characters outside the charset become U+FFFD, and of what is too long the middle is left out,
with a mark that says how much.

`gymnasium.vector.AsyncVectorEnv` reads a `Text` out of shared memory once, when it is made, and shows nothing
that is written there later. `ShortText` lies there as numpy's own strings, which are seen as they are
written.
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
    """Texts of at most `most` characters of the charset. What is sampled without a mask is short, and
    printable ASCII.
    """

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
        """A few printable characters."""
        size = int(self.np_random.integers(least, most + 1))
        return "".join(self.np_random.choice(_PRINTABLE, size=size))


@read_from_shared_memory.register(ShortText)
def _read(space: ShortText, shared_memory: Any, n: int = 1) -> NDArray[np.str_]:  # noqa: ARG001
    """The texts of all `n` environments, as they are at any time."""
    return np.frombuffer(shared_memory.get_obj(), dtype=f"=U{space.max_length}")


@write_to_shared_memory.register(ShortText)
def _write(space: ShortText, index: int, value: str, shared_memory: Any) -> None:
    """Four bytes a character, as gymnasium's own memory for a `Text` has; no text of the charset ends with
    a NUL.
    """
    np.frombuffer(shared_memory.get_obj(), dtype=f"=U{space.max_length}")[index] = value


def fit(said: str, most: int, missing: int = 0) -> str:
    """`said`, made to lie in `text(most)`. `missing` bytes were lost before its first character, and are
    marked too.

    What fits already and misses nothing comes back as it is.
    """
    clean = _FOREIGN.sub(REPLACEMENT, said)
    if missing:
        clean = _LOST.format(missing) + clean
    if len(clean) <= most:
        return clean
    room = most - len(_MARK.format(len(clean)))
    if room < 2:
        return clean[:most]
    head = room // 2
    tail = room - head
    return clean[:head] + _MARK.format(len(clean) - room) + clean[-tail:]
