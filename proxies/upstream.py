"""The contracts of what answers calls: inference engines and outside models.

An engine (`Upstream`) takes token ids and returns token ids with their logprobs and policy versions. An
outside model (`TextUpstream`), such as a teacher behind an API or a person who answers a parked call, takes
messages and returns words. Its answer is written in the policy's tokens, so that the conversation is
continued, retried and recorded like any other. It has no logprobs, so no policy gradient ever uses it.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.errors import UpstreamError
from harnessgym.message import Message, Sampling
from harnessgym.routed_experts import RoutedExperts
from harnessgym.tokens import FloatArray, TokenIds
from proxies.dialect import ModelRequest, Problem
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
    routed_experts: RoutedExperts | None = None
    """Which experts computed the prompt and the answer, on the last chunk, if the engine says so. `start`
    counts from the beginning of the prompt."""


class Upstream(Protocol):
    """One engine worker."""

    logprob_mode: LogprobMode
    version: int
    """Policy version the worker is known to serve; labels tokens of an engine that does not label its own."""

    def generate(
        self, prompt: TokenIds, sampling: Sampling, *, salt: str, experts_from: int = 0
    ) -> AsyncGenerator[TokenChunk]:
        """Sample a continuation. Closing the generator ends the sequence.

        The routed experts of prompt tokens before `experts_from` are known: the engine may leave them out.

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
        """Close connections."""
        ...


@runtime_checkable
class HasTimeouts(Protocol):
    """An upstream that gives up an engine which is silent for too long."""

    def use_timeouts(self, timeouts: EngineTimeouts) -> None:
        """Use these limits from the next request on."""
        ...


@runtime_checkable
class SpeaksLanguage(Protocol):
    """An upstream that works with words and needs the policy's language before it is used."""

    def use_language(self, language: PolicyLanguage) -> None:
        """Set the language. Raises `ConfigError` for words that it cannot express."""
        ...


@dataclass(frozen=True, slots=True)
class TextCall:
    """One call that an outside model answers."""

    id: str
    session_id: str
    ordinal: int
    request: ModelRequest
    prompt: tuple[int, ...]
    """The request in the policy's tokens."""
    sampling: Sampling
    language: PolicyLanguage
    timeout_s: float = 600.0
    """`SessionOptions.answer_timeout_s`."""
    replay: str = ""
    """`SessionOptions.replay`."""


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """The answer of an outside model."""

    content: Message | str | tuple[int, ...]
    """A message, text as the policy would write it (markup and all, without its end of turn), or token ids
    of the policy."""
    logprobs: tuple[float, ...] | None = None
    """One per token id, of the distribution it was sampled from. Only an answer of token ids may have them,
    and only an answer with logprobs can be trained on."""
    version: int = 0
    """The policy version that sampled the ids, if there are logprobs."""
    finish_reason: Literal["stop", "length"] = "stop"
    body: bytes | None = None
    """The provider's response body, to be recorded."""
    versions: tuple[int, ...] | None = None
    """One policy version per id, if they differ from `version`."""

    def ids(self, language: PolicyLanguage) -> tuple[int, ...]:
        """The answer in the policy's tokens. Raises `UpstreamError` if it cannot be expressed in them."""
        if isinstance(self.content, tuple):
            return self.content
        ids = language.write(self.content)
        cut = self.finish_reason == "length" and ids[-1] in language.stop_token_ids
        return ids[:-1] if cut else ids


class TextRefusal(UpstreamError):
    """An outside model refused to answer; `problem` is shown to the client."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@runtime_checkable
class TextUpstream(Protocol):
    """An outside model."""

    version: int
    """Unused; every worker has one."""

    async def complete(self, call: TextCall) -> TextAnswer:
        """Answer a call; cancelling withdraws it. Raises `TextRefusal`, never `UpstreamLost`, since no other
        worker could take the call over.
        """
        ...

    async def healthy(self) -> bool:
        """Whether it can answer now."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...
