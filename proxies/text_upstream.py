"""The contract of an outside model: messages in, words out; and how these become tokens of the policy.

A teacher behind an API, or whoever answers a parked call, has neither the policy's tokens nor its logprobs.
What it says is written in the policy's language, so that the conversation continues, is retried and is
recorded like any other; without logprobs no policy gradient ever uses it.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from harnessgym.errors import UpstreamError
from harnessgym.message import Message, Sampling
from proxies.dialect import ModelRequest, Problem
from proxies.language import PolicyLanguage


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
    """What an outside model says."""

    said: Message | str | tuple[int, ...]
    """A message, text as the policy would write it (markup and all, without its end of turn), or token ids
    of the policy."""
    logprobs: tuple[float, ...] | None = None
    """One per token id, of the distribution that they were sampled from. Only an answer of token ids may
    have them, and only such an answer can be trained on."""
    version: int = 0
    """The policy version that sampled the ids, where there are logprobs."""
    finish_reason: Literal["stop", "length"] = "stop"
    body: bytes | None = None
    """The provider's own answer, for the record."""
    versions: tuple[int, ...] | None = None
    """One policy version per id, where `version` is not that of all."""

    def ids(self, language: PolicyLanguage) -> tuple[int, ...]:
        """The answer in the policy's tokens. Raises `UpstreamError` if it cannot be written so."""
        if isinstance(self.said, tuple):
            return self.said
        ids = language.write(self.said)
        cut = self.finish_reason == "length" and ids[-1] in language.stop_token_ids
        return ids[:-1] if cut else ids


class TextRefusal(UpstreamError):
    """An outside model gives no answer, for a reason that its clients have a word for."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@runtime_checkable
class TextUpstream(Protocol):
    """An outside model."""

    version: int
    """Meaningless; workers have one."""

    async def complete(self, call: TextCall) -> TextAnswer:
        """Answer a call; cancelling withdraws it. Raises `TextRefusal`, and never `UpstreamLost`: nobody
        else can answer.
        """
        ...

    async def healthy(self) -> bool:
        """Whether it can be asked."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
