"""The contract of a wire protocol: how a provider's requests are read and its answers, streams and errors are written.

A member of `dialects/` holds one protocol whole. The rest of the proxy never sees a provider's JSON.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from harnessgym.message import Message, ToolCall, ToolSpec

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a harness asks of its model, in no protocol's terms."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    """auto, none, required, or a tool's name."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    """OpenAI `stream_options.include_usage`."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Sampling fields as the harness sent them; recorded, not applied."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """One whole tool call."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer. It reaches a dialect only after the call is committed."""

    reason: FinishReason
    usage: Usage


Delta = TextDelta | ReasoningDelta | ToolCallDelta | Finished


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    id: str
    model: str
    message: Message
    finish_reason: FinishReason
    usage: Usage
    created: int
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event, ready for the wire."""

    data: bytes
    act: bool
    """Whether a client may act once it has this: it is withheld until the call is committed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a request gets no answer, in no protocol's terms."""

    kind: Literal[
        "malformed", "unsupported", "unknown_key", "sealed", "not_found", "overflow", "limit", "overloaded", "upstream"
    ]
    message: str
    retry_after_s: float | None = None
    tokens: int | None = None
    """For `overflow`: how many tokens the prompt has. Harnesses read the provider's own sentence, which tells both numbers."""
    max_tokens: int | None = None
    """For `overflow`: how many it may have."""


class RequestProblem(Exception):
    """Raised while a request is read; the dialect renders it as the provider would."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Stamp:
    """What every event of one streamed answer repeats."""

    id: str
    model: str
    created: int
    """Unix seconds."""


class Dialect(Protocol):
    """One wire protocol, whole."""

    name: str
    routes: tuple[tuple[str, str], ...]
    """(method, path) pairs, below the base URL a harness is given."""
    tool_call_prefix: str
    """How the provider's tool-call ids begin; a parser mints ids that begin so."""

    def secret(self, headers: Mapping[str, str]) -> str | None:
        """The session key a request carries as its API key, if any. Header names are lower case."""
        ...

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """Read a request. Raises `RequestProblem` for what is malformed or unsupported."""
        ...

    def render(self, answer: Answer) -> bytes:
        """The body of a whole answer."""
        ...

    def stream(
        self, deltas: AsyncIterator[Delta], stamp: Stamp, request: ModelRequest, prompt_tokens: int
    ) -> AsyncIterator[Event]:
        """The events of a streamed answer. Each event says whether a client may act on it."""
        ...

    def keepalive(self) -> bytes:
        """Bytes that every client of the protocol ignores."""
        ...

    def error(self, problem: Problem) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body in the provider's exact shape."""
        ...

    def stream_error(self, problem: Problem) -> bytes:
        """The event that ends a stream which failed after it began."""
        ...
