"""One request inside the engine, its output, and orders to the engine's thread.

The input is a prompt and a `SequenceSampling`. The output are `Chunk`s, each with tokens of one policy
version; the last one has a finish reason. An order is done on the engine's thread, or dropped if the engine
stops first.
"""

from collections.abc import Callable
from collections.abc import Sequence as List
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from harnessgym.errors import HarnessGymError, UpstreamError
from harnessgym.tokens import IdArray, TokenIds

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class SequenceSampling:
    """How to sample. The reported logprobs are of the distribution after temperature, then top-k, then
    top-p (renormalised).
    """

    max_tokens: int
    """At least 1."""
    temperature: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    top_p: float = 1.0
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    logprobs: int = 0
    """Alternatives reported per token, beside the sampled one."""
    prompt_logprobs: int | None = None
    """Score the prompt, with this many alternatives per token (temperature and truncation do not apply)."""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Logprobs at one position: the token that is there, its rank (1 is the likeliest; 0 where unknown)
    and alternatives.
    """

    token: int
    logprob: float
    rank: int
    alternatives: dict[int, float]


class Chunk(NamedTuple):
    """Tokens sampled since the chunk before, all under policy `version`."""

    ids: list[int]
    logprobs: list[float]
    version: int
    alternatives: List[dict[int, float]] = ()
    prompt_scores: list[TokenScore] | None = None
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were found in the prefix cache."""


class Sequence:
    """Engine-side state of a request; its tokens live in the row it occupies. Used by the engine thread
    alone.

    `deliver` is called on the engine thread with every chunk.
    """

    def __init__(
        self,
        prompt: TokenIds | IdArray,
        sampling: SequenceSampling,
        deliver: Callable[[Chunk], None],
        *,
        salt: str = "",
        eos: frozenset[int] = frozenset(),
        matcher: "StopMatcher | None" = None,
    ) -> None:
        self.prompt = np.array(prompt, dtype=np.int32)
        self.sampling = sampling
        self.salt = salt
        self.deliver = deliver
        self.eos = frozenset[int]() if sampling.ignore_eos else eos
        self.stops = sampling.stop_token_ids | self.eos
        self.uniforms: np.random.Generator | None = None
        self.row = -1
        """Row it occupies; -1 while it waits or once it is finished."""
        self.flushed = len(self.prompt)
        """Length up to which its tokens have been delivered."""
        self.cached_tokens = 0
        self.alternatives: list[dict[int, float]] = []
        self.prompt_scores: list[TokenScore] | None = None
        self.finished = False
        self.matcher = matcher

    @property
    def limit(self) -> int:
        """Length at which it ends."""
        return len(self.prompt) + self.sampling.max_tokens

    @property
    def needs_scores(self) -> bool:
        """Whether its prompt is still to be scored."""
        return self.sampling.prompt_logprobs is not None and self.prompt_scores is None


class StopMatcher:
    """Finds stop strings in the text of a growing completion; `decode` returns the text that a token
    completes.
    """

    def __init__(self, stops: tuple[str, ...], decode: Callable[[int], str]) -> None:
        self._stops = stops
        self._decode = decode
        self._keep = max(len(stop) for stop in stops) - 1
        self._tail = ""

    def feed(self, token: int) -> str | None:
        """The stop string that this token completes, if any."""
        piece = self._decode(token)
        window = self._tail + piece
        matches = [(window.find(stop), stop) for stop in self._stops if stop in window]
        self._tail = window[len(window) - self._keep :] if self._keep else ""
        return min(matches)[1] if matches else None


@dataclass(frozen=True, slots=True)
class EngineOrder:
    """Work for the engine's thread, and its replacement if the engine stops first. Both run on that
    thread.
    """

    do: Callable[[], None]
    drop: Callable[[], None]


def promise(
    done: Future[None], work: Callable[[], None], stopped: Callable[[], UpstreamError]
) -> EngineOrder:
    """An order that sets a future to the work's outcome, or to `stopped()`. The work of a cancelled future is
    skipped.
    """

    def do() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            work()
        except (HarnessGymError, RuntimeError) as error:
            done.set_exception(error)
        except Exception as error:
            done.set_exception(UpstreamError(f"The engine has failed: {error!r}. Restart it."))
            raise
        else:
            done.set_result(None)

    def drop() -> None:
        if done.set_running_or_notify_cancel():
            done.set_exception(stopped())

    return EngineOrder(do, drop)
