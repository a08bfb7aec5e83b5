"""The contract of an inference engine: token ids in; token ids, their logprobs and their policy versions
out.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.message import Sampling
from harnessgym.tokens import FloatArray, TokenIds
from proxies.language import PolicyLanguage

LogprobMode = Literal["processed", "raw"]
"""processed: logprobs of the distribution that was sampled from (after temperature, top-k, top-p)."""


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Newly sampled tokens of one sequence; `ids`, `logprobs` and `versions` are equally long."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: Literal["stop", "length", "abort"] | None = None
    """Set on the last chunk."""
    stop_token: int | None = None
    prompt_tokens: int | None = None
    """The engine's own count, on the last chunk."""
    completion_tokens: int | None = None
    """The engine's own count, on the last chunk."""
    cached_tokens: int = 0


class Upstream(Protocol):
    """One engine worker."""

    logprob_mode: LogprobMode
    version: int
    """Policy version the worker is known to serve; labels tokens of an engine that does not label its own."""

    def generate(self, prompt: TokenIds, sampling: Sampling, *, salt: str) -> AsyncGenerator[TokenChunk]:
        """Sample a continuation. Closing the generator ends the sequence.

        Raises `UpstreamLost` when the worker is gone, `UpstreamSilent` when it sends nothing for too long,
        `UpstreamError` when it refuses or contradicts itself.
        """
        ...

    async def score(self, ids: TokenIds, temperature: float = 1.0) -> FloatArray:
        """Log-probability of each token given those before it, float32 [T]; entry 0 is 0."""
        ...

    async def healthy(self) -> bool:
        """Whether the worker answers now."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


@runtime_checkable
class HasTimeouts(Protocol):
    """An upstream that gives up an engine which is silent for too long."""

    def use_timeouts(self, timeouts: EngineTimeouts) -> None:
        """How long that is, from the next request on."""
        ...


@runtime_checkable
class SpeaksLanguage(Protocol):
    """An upstream that works with words and is told, before it is used, the policy's language."""

    def use_language(self, language: PolicyLanguage) -> None:
        """Speak it. Raises `ConfigError` for what it cannot say."""
        ...
