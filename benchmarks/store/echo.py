"""An engine whose answer is a function of its prompt: whoever has the prompt knows what must have been stored."""

import hashlib
import json
from collections.abc import Sequence

from harnessgym.message import Sampling
from harnessgym.tokens import TokenIds
from proxies.language import Language
from proxies.upstreams.scripted import ScriptedUpstream

KIND = f"{__name__}:Echo"
"""The kind under which a proxy finds it."""
_LETTERS = "abcdefghijklmnop"
_LENGTH = 12
_DELAY_S = 0.01


class Echo:
    """A worker kind. Its address is its vocabulary: 16 tokens and the one that ends an answer."""

    def __new__(cls, address: str, *, version: int) -> ScriptedUpstream:  # type: ignore[misc]
        """The engine: three chunks, each after a pause, so that a kill finds answers in the making."""
        words: list[int] = json.loads(address)

        def script(prompt: TokenIds, sampling: Sampling) -> list[int]:  # noqa: ARG001 the prompt decides alone
            return answer(words, prompt)

        return ScriptedUpstream(script, chunk=4, delay_s=_DELAY_S, version=version)


def vocabulary(language: Language) -> list[int]:
    """16 letters of a language, and its end of an answer."""
    return [*(language.renderer.encode(letter)[0] for letter in _LETTERS), *language.renderer.encode("<|im_end|>")]


def answer(words: Sequence[int], prompt: TokenIds) -> list[int]:
    """What it answers."""
    digest = hashlib.sha256(json.dumps(list(prompt)).encode()).hexdigest()
    return [*(words[int(digit, 16)] for digit in digest[:_LENGTH]), words[-1]]
