"""Replay: answers requests from a recorded rollout, and finds the first request that departs from it.

A request is answered by the recorded call with equal messages and tools, whatever protocol they came in.
Equal requests are answered in the order they were recorded, so agents that take turns keep their own order.
In system texts and tools, dates, ids, counts and paths are ignored: another day or folder is not a
divergence. The first request that is not in the record ends the replay.
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
from harnessgym.store.facts import calls_of, rollout_of
from harnessgym.tokens import TokenIds
from harnessgym.traces.completions import Languages
from harnessgym.traces.difference import difference, without_volatile


@dataclass(frozen=True, slots=True)
class Request:
    """A request, independent of any protocol."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()

    def digests(self) -> tuple[str, ...]:
        """Return the digest of the tools, then of each message."""
        return (_digest(_tools_text(self.tools)), *map(_message_digest, self.messages))


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One recorded call: its request and the sampled tokens."""

    call_id: str
    ordinal: int
    request: Request
    ids: TokenIds
    logprobs: Sequence[float] | None
    """None for an outside model."""
    versions: Sequence[int]
    """One per token."""
    finish_reason: str
    """stop, length, or abort for an answer that was cut off."""


@dataclass(frozen=True, slots=True)
class ReplayDivergence:
    """A request that is not in the record."""

    call_id: str | None
    """The most similar recorded call; None if all recorded calls have been used."""
    where: str
    diff: str

    def __str__(self) -> str:
        of = "" if self.call_id is None else f" from recorded call {self.call_id}"
        return f"The replay diverges{of}: {self.where}.\n{self.diff}".rstrip()


@dataclass
class Playback:
    """A record that is being replayed."""

    turns: Sequence[RecordedTurn]
    divergence: ReplayDivergence | None = None
    """The first divergence. Nothing is answered after it."""
    _given: set[str] = field(default_factory=set)
    _digests: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def answer(self, request: Request) -> RecordedTurn | ReplayDivergence:
        """Return the recorded call that answers a request, and mark it as used.

        An answer that was cut off is used only if no complete one is left.
        """
        if self.divergence is not None:
            return self.divergence
        wanted = request.digests()
        left = [turn for turn in self.turns if turn.call_id not in self._given]
        equal = [turn for turn in left if self._of(turn) == wanted]
        if equal:
            matching_turn = min(equal, key=lambda turn: turn.finish_reason == "abort")
            self._given.add(matching_turn.call_id)
            return matching_turn
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
    """Return where a request first differs from that of a recorded call; None if it does not differ."""
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
    """The replay of one recorded call."""

    call_id: str
    ordinal: int
    prompt_len: int
    """Length of the recorded prompt."""
    problem: str | None = None
    """None: the request gave exactly the recorded prompt tokens, and its answer the recorded tokens."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The replay of a rollout."""

    rollout_id: str
    calls: tuple[CallReplay, ...]
    """Calls up to and including the first that differs."""
    skipped: tuple[str, ...] = ()
    """Calls whose request cannot be read again, with the reason."""

    @property
    def ok(self) -> bool:
        """Whether every request gave the recorded prompt. A request that cannot be read again did not."""
        return not self.skipped and all(call.problem is None for call in self.calls)


def replay(store: TraceStore, rollout_id: str, languages: Languages | None = None) -> ReplayReport:
    """Send a rollout's recorded requests through the proxy's own code again, and compare the prompt tokens.

    Each policy's own tokenizer and template are used. Nothing is written to the store. `languages` can name
    the policies' folders if the store does not. Raises `TraceError` if a policy's language is missing, and
    `StoreError` if there is no such rollout.
    """
    known = languages or Languages()
    spoken = store.read(lambda conn: _spoken(conn, rollout_id, known))
    through_proxy: Callable[..., Any] = load("service", "proxies.replaying:replay_rollout")
    report: ReplayReport = asyncio.run(through_proxy(store, rollout_id, spoken))
    return report


def _spoken(conn: Connection, rollout_id: str, languages: Languages) -> dict[str | None, Any]:
    """Return the languages of the policies called in a rollout by policy id; None is the rollout's own."""
    facts = rollout_of(conn, rollout_id)
    out = dict[str | None, Any]()
    for policy_id in {call.policy_id for call in calls_of(conn, rollout_id)} or {None}:
        out[policy_id] = languages.of_rollout(conn, facts, policy_id)
        if isinstance(out[policy_id], str):
            names = {id_: name for name, id_ in policies.of_run(conn, facts.run_id).items()}
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
    """Return a message as text for people."""
    calls = "".join(f" {call.name}({call.canonical})" for call in message.tool_calls)
    return f"{message.reasoning}{message.shown_text}{calls}"
