"""The contract of a wire protocol: how a provider's requests are read and its answers, streams and errors are
written.

A member of `dialects/` holds one protocol whole. The rest of the proxy never sees a provider's JSON.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from harnessgym.message import Message, ToolCall, ToolSpec

FinishReason = Literal["stop", "length", "tool_calls"]
Purpose = Literal["generate", "count"]


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint of a protocol, below the base URL that a harness is given."""

    method: str
    path: str
    """`{name}` stands for one piece of the path."""
    purpose: Purpose = "generate"
    """generate: sample an answer. count: say how many tokens the prompt has."""


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """JSON that an answer must be."""

    name: str = ""
    schema: Mapping[str, Any] | None = None
    """None: any JSON object."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a harness asks of its model, in no protocol's terms."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    """auto, none, required, or a tool's name."""
    parallel_tool_calls: bool = True
    """Whether an answer may call more than one tool."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    """OpenAI `stream_options.include_usage`."""
    n: int = 1
    """Number of answers to sample from the same prompt (siblings)."""
    output: OutputFormat | None = None
    """Set if the answer must be JSON."""
    prompt: str | tuple[int, ...] | None = None
    """A raw prompt, text or token ids, instead of messages; no chat template is applied."""
    previous: str | None = None
    """Id of the earlier call whose conversation this one continues; `messages` then holds only what is
    new."""
    instructions: bool = False
    """Whether the first message holds instructions for this call only. A call that continues this one by
    `previous` does not inherit them."""
    refers_to: tuple[str, ...] = ()
    """Ids of earlier calls whose answers `messages` refers to instead of having them; see `fill`."""
    fill: "Callable[[Mapping[str, Message]], ModelRequest] | None" = field(default=None, compare=False)
    """Makes this request with those answers in it, given by call id. Raises `RequestProblem` for a part that
    an answer does not have."""
    identity: str | None = None
    """Text that a client's retry shares with this request, if the bytes of the two may differ."""
    stream_type: str = "text/event-stream; charset=utf-8"
    """Content type of a streamed answer."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """Sampling fields as the harness sent them; recorded, not applied."""
    headers: Mapping[str, str] = field(default_factory=dict)
    unconstrained: tuple[Message, ...] | None = None
    """The messages before demands were put to the policy in words; None if none were."""

    @property
    def as_sent(self) -> tuple[Message, ...]:
        """The messages as the harness sent them."""
        return self.messages if self.unconstrained is None else self.unconstrained


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of one call."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    """Those of the completion that are reasoning, see `Parser.reasoning_tokens`."""


def total_usage(usages: Sequence[TokenUsage]) -> TokenUsage:
    """Usage of siblings together: their prompt counts once."""
    first = usages[0] if usages else TokenUsage(0, 0)
    completion = sum(usage.completion_tokens for usage in usages)
    return TokenUsage(
        first.prompt_tokens, completion, first.cached_tokens, sum(usage.reasoning_tokens for usage in usages)
    )


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More visible text."""

    text: str
    choice: int = 0
    """Which of `n` answers this belongs to; so in every delta."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More reasoning text."""

    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """One whole tool call."""

    index: int
    call: ToolCall
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer. It reaches a dialect only after the call is committed."""

    reason: FinishReason
    usage: TokenUsage
    stop_sequence: str | None = None
    """The stop string that ended the answer, if one did."""
    choice: int = 0


Delta = TextDelta | ReasoningDelta | ToolCallDelta | Finished


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    id: str
    model: str
    message: Message
    finish_reason: FinishReason
    usage: TokenUsage
    created: int
    """Unix seconds."""
    stop_sequence: str | None = None
    """The stop string that ended the answer, if one did."""


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
        "malformed",
        "unsupported",
        "unknown_key",
        "sealed",
        "not_found",
        "too_large",
        "too_slow",
        "overflow",
        "limit",
        "overloaded",
        "unavailable",
        "upstream",
    ]
    message: str
    retry_after_s: float | None = None
    tokens: int | None = None
    """For `overflow`: how many tokens the prompt has. Harnesses parse the provider's message, which has both
    numbers."""
    max_tokens: int | None = None
    """For `overflow`: how many it may have."""
    limit: Literal["turns", "tokens", "wall_s", "contract", "refusals"] | None = None
    """For `limit`: which budget is used up, or that a contract ends the session."""
    code: str | None = None
    """The provider's error code, if it has one for exactly this problem."""


class RequestProblem(Exception):
    """Raised while a request is read; the dialect renders it as the provider would."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Stamp:
    """The fields that every event of one streamed answer repeats."""

    id: str
    model: str
    created: int
    """Unix seconds."""


class Dialect(Protocol):
    """One wire protocol, whole."""

    name: str
    routes: tuple[Route, ...]
    marks: Sequence[str]
    """Names of headers that only its clients send, lower case."""
    tool_call_prefix: str
    """How the provider's tool-call ids begin; a parser mints ids that begin so."""

    def secret(self, headers: Mapping[str, str]) -> str | None:
        """The session key a request carries as its API key, if any. Header names are lower case."""
        ...

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """Read a request. Raises `RequestProblem` for what is malformed or unsupported.

        `headers` also has the request's path, without the key, as `:path` and its query string as `:query`.
        """
        ...

    def render(self, answers: Sequence[Answer], request: ModelRequest) -> bytes:
        """The body of whole answers: one, or `request.n` siblings."""
        ...

    def count(self, tokens: int) -> bytes:
        """The response body with a prompt's token count. Only called on dialects with a `count` route."""
        ...

    def stream(
        self, deltas: AsyncIterator[Delta], stamp: Stamp, request: ModelRequest, prompt_tokens: int
    ) -> AsyncIterator[Event]:
        """The events of a streamed answer. Each event says whether a client may act on it.

        Deltas of siblings come mixed; each of the `request.n` answers ends with its own `Finished`.
        """
        ...

    def keepalive(self) -> bytes:
        """Bytes that every client of the protocol ignores."""
        ...

    def error(self, problem: Problem) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body in the provider's exact shape."""
        ...

    def stream_error(self, problem: Problem, stamp: Stamp) -> bytes:
        """The event that ends a stream which failed after it began."""
        ...
