"""A live call: its sampled tokens, the deltas that clients may see, and its listeners.

All deltas are kept, so a client that comes back reads the same answer from the beginning, whether it is still
being sampled or long finished.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from harnessgym.errors import UpstreamError
from harnessgym.message import Sampling
from harnessgym.routed_experts import RoutedExperts
from proxies.continuation import Prompt
from proxies.dialect import Answer, Delta, ModelRequest, Problem, ReasoningDelta, Stamp, TextDelta
from proxies.language import PolicyLanguage
from proxies.upstream import TextAnswer, TokenChunk


@dataclass
class SampledTokens:
    """Tokens of one answer so far, across the workers that sampled them."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish_reason: str = "abort"
    stop_token: int | None = None
    cached_tokens: int = 0
    first_at: float | None = None
    """`time.monotonic` of the first token."""
    worker: str = ""
    text_only: bool = False
    """Whether an outside model answered: there are no logprobs and no versions."""
    body: bytes | None = None
    """The outside model's response body."""
    routed_experts: RoutedExperts | None = None
    """Which experts computed the call's tokens. The last worker computes those of all workers before it."""

    def accept_text(self, answer: TextAnswer, language: PolicyLanguage) -> None:
        """Set the answer of an outside model. Raises `UpstreamError` if it cannot be expressed in the
        policy's tokens.
        """
        self.ids = list(answer.ids(language))
        self.first_at = time.monotonic()
        self.text_only = answer.logprobs is None
        if answer.logprobs is not None:
            self.logprobs = list(answer.logprobs)
            self.versions = list(answer.versions or [answer.version] * len(self.ids))
        ended = answer.finish_reason == "stop" and self.ids[-1:] and self.ids[-1] in language.stop_token_ids
        self.finish_reason = answer.finish_reason
        self.stop_token = self.ids[-1] if ended else None
        self.body = answer.body

    def take(self, chunk: TokenChunk) -> None:
        """Add a chunk. Raises `UpstreamError` if its lists differ in length."""
        if not len(chunk.ids) == len(chunk.logprobs) == len(chunk.versions):
            counts = f"{len(chunk.ids)} ids, {len(chunk.logprobs)} logprobs, {len(chunk.versions)} versions"
            raise UpstreamError(f"Worker {self.worker} gave {counts} in one chunk.")
        if chunk.ids and self.first_at is None:
            self.first_at = time.monotonic()
        self.ids.extend(chunk.ids)
        self.logprobs.extend(chunk.logprobs)
        self.versions.extend(chunk.versions)

    def end(self, chunk: TokenChunk, prompt_len: int, completion_len: int) -> None:
        """Finish the answer. Raises `UpstreamError` if the engine's token counts differ from ours, or if it
        reports experts of tokens that there are not.
        """
        # A lost or duplicated stream event would shift logprobs against tokens without any other sign.
        if (chunk.prompt_tokens, chunk.completion_tokens) != (prompt_len, completion_len):
            raise UpstreamError(
                f"Worker {self.worker} counted {chunk.prompt_tokens} prompt and {chunk.completion_tokens} "
                f"completion tokens; it was given {prompt_len} and gave {completion_len}."
            )
        routed = chunk.routed_experts
        if routed is not None and routed.end > prompt_len + completion_len:
            raise UpstreamError(
                f"Worker {self.worker} reported the experts of {routed.end} tokens; it had {prompt_len} + "
                f"{completion_len}."
            )
        assert chunk.finish_reason is not None
        self.finish_reason = chunk.finish_reason
        self.stop_token = chunk.stop_token
        self.cached_tokens = chunk.cached_tokens
        self.routed_experts = routed


@dataclass
class StreamSilence:
    """How long a call waits for its engine; all times are seconds of `time.monotonic`."""

    since: float = field(default_factory=time.monotonic)
    """When the last tokens came, or the call began."""
    lost: bool = False
    """Whether an engine was lost since then, or none was ready. A drained or updated one does not count."""
    lost_s: float = 0.0
    """The longest silence that ended when an engine took the call because none was ready or one was lost."""
    open_s: float = 0.0
    """How long it had been silent when its last client left or it was interrupted; 0.0 while it has a
    client."""
    whole: bool = False
    """Whether an outside model answers. It sends the answer in one piece and nothing before it."""

    def end(self) -> None:
        """End the silence: tokens have come."""
        now = time.monotonic()
        if self.lost:
            self.lost_s = max(self.lost_s, now - self.since)
            self.lost = False
        self.since = now

    def leave(self) -> None:
        """Record how long the call has been silent, when its last client left or it was interrupted."""
        self.open_s = max(self.open_s, time.monotonic() - self.since)

    def timings(self) -> dict[str, float]:
        """The timings recorded with the call; see `harnessgym.outcome.engine_silence`."""
        seconds = {"lost_s": self.lost_s, "whole_s" if self.whole else "silent_s": self.open_s}
        return {name: round(value, 6) for name, value in seconds.items() if value}


@dataclass
class Call:
    """A call, from its intent until it is forgotten."""

    id: str
    ordinal: int
    digest: str
    """Digest of the raw request, by which a retry is recognised."""
    call_prefix: str
    """Prefix of its tool-call ids."""
    request: ModelRequest
    prompt: Prompt
    prompt_len: int
    prompt_hash: str
    """`hash_ids` of the prompt."""
    prompt_segment: str
    chain: str
    """Digest of the request's messages."""
    sampling: Sampling
    stamp: Stamp
    policy_id: str | None = None
    """The policy that answers, where there are several."""
    sampled: SampledTokens = field(default_factory=SampledTokens)
    silence: StreamSilence = field(default_factory=StreamSilence)
    deltas: list[Delta] = field(default_factory=list)
    answer: Answer | None = None
    """Set once the call is committed."""
    problem: Problem | None = None
    """Set once the call has failed."""
    acted: bool = False
    """Whether a client was sent an event on which it can act."""
    listeners: set[asyncio.Event] = field(default_factory=set)
    task: "asyncio.Task[None] | None" = None
    aborted: bool = False
    """Whether sampling was ended early. A retry is never given such an answer."""
    interruptible: bool = True
    """False from the last token on: a complete answer is committed even if every client has left."""
    _grace: asyncio.TimerHandle | None = None

    @property
    def settled(self) -> bool:
        """Whether the call is committed or has failed."""
        return self.answer is not None or self.problem is not None

    @property
    def over(self) -> bool:
        """Whether no retry needs the call any more: a client could act on its answer, or it was aborted or
        failed.
        """
        return self.settled and (self.acted or self.aborted or self.problem is not None)

    def publish(self, deltas: Sequence[Delta]) -> None:
        """Show more of the answer; adjacent text deltas are merged."""
        if deltas:
            self.deltas.extend(_coalesce(deltas))
            self.wake()

    def settle(self, answer: Answer | None = None, problem: Problem | None = None) -> None:
        """Set the answer of a committed call, or the problem of a failed one."""
        self.answer = answer
        self.problem = problem
        self.wake()

    def release(self) -> None:
        """Free the tokens. The deltas and the answer stay, for clients that come back."""
        self.prompt = Prompt([], None, [], None)
        self.sampled = SampledTokens()

    def wake(self) -> None:
        """Wake every listener."""
        for listener in self.listeners:
            listener.set()

    def join(self, listener: asyncio.Event) -> None:
        """Add a listener. Its event is set whenever there may be something new."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self.silence.open_s = 0.0
        self.listeners.add(listener)

    def leave(self, listener: asyncio.Event, grace_s: float) -> None:
        """Remove a listener. Without any, the call is interrupted after the grace time."""
        self.listeners.discard(listener)
        if not self.listeners and not self.settled:
            self.silence.leave()
            self._grace = asyncio.get_running_loop().call_later(grace_s, self.interrupt)

    def interrupt(self) -> None:
        """End sampling. The tokens so far are committed as aborted."""
        # Cancel once only: a second cancellation would hit the commit of the first one's tokens.
        if self.interruptible and self.task is not None:
            self.interruptible = False
            self.aborted = True
            self.silence.leave()
            self.task.cancel()


def _coalesce(deltas: Sequence[Delta]) -> list[Delta]:
    out: list[Delta] = []
    for delta in deltas:
        last = out[-1] if out else None
        if isinstance(delta, TextDelta) and isinstance(last, TextDelta):
            out[-1] = TextDelta(last.text + delta.text)
        elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            out[-1] = ReasoningDelta(last.text + delta.text)
        else:
            out.append(delta)
    return out
