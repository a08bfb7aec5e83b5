"""Replay: what a record answers to a request, and where a request leaves the record.

A request is answered by the recorded call that was asked the same: equal messages and tools, whatever
protocol they came in. Equal requests are answered in the order in which they were recorded, so agents that
take turns keep their own order. In system texts and tools, dates, ids, counts and places do not count:
another day or folder is no divergence. The first request that the record does not have ends the replay.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from harnessgym.errors import TraceError
from harnessgym.message import Message, ToolSpec, canonical_json
from harnessgym.registry import load
from harnessgym.store import TraceStore, policies
from harnessgym.tokens import TokenIds
from harnessgym.traces.completions import Languages
from harnessgym.traces.difference import difference, without_volatile
from harnessgym.traces.facts import calls_of, rollout_of


@dataclass(frozen=True, slots=True)
class Request:
    """What a call is asked, in no protocol's terms."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()

    def digests(self) -> tuple[str, ...]:
        """Identity of the tools, then of each message."""
        return (_digest(_tools_text(self.tools)), *map(_message_digest, self.messages))


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One recorded call: what it was asked and what was sampled."""

    call_id: str
    ordinal: int
    request: Request
    ids: TokenIds
    logprobs: Sequence[float] | None
    """None for what an outside model said."""
    versions: Sequence[int]
    """One per token."""
    finish_reason: str
    """stop, length, or abort for an answer that was cut off."""


@dataclass(frozen=True, slots=True)
class ReplayDivergence:
    """A request that the record does not have."""

    call_id: str | None
    """The recorded call that is nearest; None if every call of the record has been given."""
    where: str
    diff: str

    def __str__(self) -> str:
        of = "" if self.call_id is None else f" from recorded call {self.call_id}"
        return f"The replay diverges{of}: {self.where}.\n{self.diff}".rstrip()


@dataclass
class Playback:
    """A record that is being played."""

    turns: Sequence[RecordedTurn]
    divergence: ReplayDivergence | None = None
    """The first one; nothing is answered after it."""
    _given: set[str] = field(default_factory=set)
    _digests: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def answer(self, request: Request) -> RecordedTurn | ReplayDivergence:
        """The recorded call that answers a request, which then is used up. An answer that was cut off is only
        given if no whole one is left.
        """
        if self.divergence is not None:
            return self.divergence
        wanted = request.digests()
        left = [turn for turn in self.turns if turn.call_id not in self._given]
        equal = [turn for turn in left if self._of(turn) == wanted]
        if equal:
            found = min(equal, key=lambda turn: turn.finish_reason == "abort")
            self._given.add(found.call_id)
            return found
        self.divergence = self._diverged(left, request, wanted)
        return self.divergence

    def _of(self, turn: RecordedTurn) -> tuple[str, ...]:
        if turn.call_id not in self._digests:
            self._digests[turn.call_id] = turn.request.digests()
        return self._digests[turn.call_id]

    def _diverged(
        self, left: Sequence[RecordedTurn], request: Request, wanted: Sequence[str]
    ) -> ReplayDivergence:
        if not left:
            last = request.messages[-1] if request.messages else None
            return ReplayDivergence(
                None, "every recorded call has been given", "" if last is None else f"+ {_text(last)[:280]}"
            )
        nearest = max(left, key=lambda turn: _common(self._of(turn), wanted))
        return compare(nearest, request) or ReplayDivergence(nearest.call_id, "the request is the same", "")


def compare(turn: RecordedTurn, request: Request) -> ReplayDivergence | None:
    """Where a request differs first from that of a recorded call; None if it does not."""
    old, new = turn.request.digests(), request.digests()
    if old == new:
        return None
    if old[0] != new[0]:
        diff = difference(_tools_text(turn.request.tools), _tools_text(request.tools))
        return ReplayDivergence(turn.call_id, "other tools are offered", diff)
    at = _common(old, new) - 1
    recorded = turn.request.messages[at] if at < len(turn.request.messages) else None
    asked = request.messages[at] if at < len(request.messages) else None
    one = recorded or asked
    other = asked or recorded
    assert one is not None
    assert other is not None
    if recorded is None:
        return ReplayDivergence(
            turn.call_id, f"message {at} ({other.role}) is not in the record", f"+ {_text(other)[:280]}"
        )
    if asked is None:
        return ReplayDivergence(
            turn.call_id, f"message {at} ({one.role}) is in the record only", f"- {_text(one)[:280]}"
        )
    return ReplayDivergence(
        turn.call_id, f"message {at} ({other.role})", difference(_text(one), _text(other))
    )


@dataclass(frozen=True, slots=True)
class CallReplay:
    """What became of one recorded call."""

    call_id: str
    ordinal: int
    prompt_len: int
    """Of the record."""
    problem: str | None = None
    """None: the request gave the recorded prompt token for token, and its answer the recorded tokens."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What became of a rollout."""

    rollout_id: str
    calls: tuple[CallReplay, ...]
    """Up to and with the first that differs."""
    skipped: tuple[str, ...] = ()
    """Calls whose request cannot be read again, and why."""

    @property
    def ok(self) -> bool:
        """Whether every request gave the recorded prompt. One that cannot be read again gave none."""
        return not self.skipped and all(call.problem is None for call in self.calls)


def replay(store: TraceStore, rollout_id: str, languages: Languages | None = None) -> ReplayReport:
    """Put a rollout's recorded requests through a proxy's own parts again and compare the prompts token for
    token.

    Every policy is asked in its own language. Nothing is written to the store. `languages` know the policies'
    folders where the store does not. Raises `TraceError` where a policy's language is missing, `StoreError`
    if there is no such rollout.
    """
    known = languages or Languages()
    spoken = store.read(lambda conn: _spoken(conn, rollout_id, known))
    through_proxy: Callable[..., Any] = load("service", "proxies.replaying:replay_rollout")
    report: ReplayReport = asyncio.run(through_proxy(store, rollout_id, spoken))
    return report


def _spoken(conn: Connection, rollout_id: str, languages: Languages) -> dict[str | None, Any]:
    """The languages of the policies that were asked in a rollout, as calls name them; None is its own."""
    facts = rollout_of(conn, rollout_id)
    out = dict[str | None, Any]()
    for policy_id in {call.policy_id for call in calls_of(conn, rollout_id)} or {None}:
        out[policy_id] = languages.of_rollout(conn, facts, policy_id)
        if isinstance(out[policy_id], str):
            names = {found: name for name, found in policies.of_run(conn, facts.run_id).items()}
            of = "" if policy_id is None else f", which policy {names[policy_id]!r} sampled in part,"
            raise TraceError(f"Rollout {rollout_id}{of} cannot be replayed: {out[policy_id]}.")
    return out


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _message_digest(message: Message) -> str:
    return (
        message.digest
        if message.role != "system"
        else _digest(without_volatile(message.without_nonce().content))
    )


def _tools_text(tools: tuple[ToolSpec, ...]) -> str:
    return without_volatile(
        canonical_json(sorted((tool.to_template() for tool in tools), key=canonical_json))
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _text(message: Message) -> str:
    """A message for people."""
    calls = "".join(f" {call.name}({call.canonical})" for call in message.tool_calls)
    return f"{message.reasoning}{message.shown_text}{calls}"
