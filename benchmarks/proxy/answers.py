"""What the scripted engine says, as token ids and as text, so that every process of the benchmark knows it
without asking.
"""

import random
import re
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

POLICY = Path("environments/lookup/policy")
VARIANTS = 61
LENGTH = 64
LONG = 1_200
"""Tokens of a paced answer: a minute at 20 tokens a second."""
_WORD = re.compile("Ġ?[A-Za-z]{2,}")


@dataclass(frozen=True, slots=True)
class Script:
    """One answer: `pieces[i]` is the text of token `ids[i]`; the last token ends the turn and has none."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(self.pieces)


def scripts(length: int = LENGTH, count: int = VARIANTS, policy: Path = POLICY) -> list[Script]:
    """The answers of a policy, all different and always the same ones."""
    tokenizer = Tokenizer.from_file(str(policy / "tokenizer.json"))
    words = sorted(number for token, number in tokenizer.get_vocab().items() if _WORD.fullmatch(token))
    end = int(tokenizer.token_to_id("<|im_end|>") or 0)
    rng = random.Random(0)
    out = []
    for _ in range(count):
        ids = rng.choices(words, k=length - 1)
        pieces = [str(tokenizer.id_to_token(number)).replace("Ġ", " ") for number in ids]
        out.append(Script((*ids, end), (*pieces, "")))
    return out
