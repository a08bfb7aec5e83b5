"""Sessions in memory. The store can restore each of them exactly.

A session stays in memory from its opening. One that another process opened is loaded when its key is first
used: its forest is rebuilt from the recorded calls, so a conversation continues on its branch after a
restart.

Every change to a session runs between two awaits, so its calls may be concurrent without a lock.
"""

import asyncio
import hashlib
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harnessgym.message import Message, Sampling, chain_digests
from harnessgym.run_config.session import SessionOptions
from harnessgym.store import agents, bodies, calls, events, sessions
from harnessgym.store.agents import AgentRow
from harnessgym.store.calls import CallStatus, RecordedCall, Segment
from harnessgym.store.events import EventRow
from harnessgym.store.sessions import SessionRow, hash_key
from harnessgym.store.trace_store import TraceStore
from harnessgym.traces.forest import Forest
from harnessgym.traces.orchestration.rows import OrchestrationRows
from harnessgym.traces.orchestration.tracker import SessionOrchestration
from proxies.call import Call
from proxies.conversations import PolicyContext
from proxies.dialect import ModelRequest, Problem
from proxies.language import ReadSampled
from proxies.lineage import Lineages
from proxies.orchestration import ContractWatch, OrchestrationTracker
from proxies.previous import not_found, response_id
from proxies.reading import BodyReader
from proxies.recent_calls import RecentCalls
from proxies.session_restore import latest_requests
from proxies.stored_experts import StoredExperts

OWN_FAULT = frozenset({"malformed", "unsupported", "too_large", "too_slow", "overflow"})
"""Problems of a request that count against its session's budget."""
"""Reads sampled tokens, given the policy that sampled them, as a message."""
_REFUSALS = 256
"""How many requests of a session may be refused; as many as it has turns, if these are more."""
_RECORDED = 256
"""How many refused requests of each kind that costs nothing are recorded."""
_REMEMBERED = 64
"""Finished calls of a session that are kept for clients that retry after they were answered."""


@dataclass
class Session:
    """One open session."""

    row: SessionRow
    sampling: Sampling
    options: SessionOptions
    lineages: Lineages
    watch: ContractWatch
    tracker: OrchestrationTracker
    sealed: bool = False
    stale: bool = False
    """Whether a write failed, so that memory and store differ: it is loaded again before the next call."""
    next_ordinal: int = 0
    policy_contexts: dict[str | None, PolicyContext] = field(default_factory=dict)
    """By policy."""
    live: dict[str, Call] = field(default_factory=dict)
    """Calls in flight by id."""
    recent: RecentCalls = field(default_factory=lambda: RecentCalls(_REMEMBERED))
    """Calls of this process that a retry may join."""
    unanswered: "dict[str, deque[RecordedCall]]" = field(default_factory=dict)
    """Calls of an earlier process that no client is known to have received, by request digest, oldest first.
    Equal requests that were in flight together are separate calls."""
    acknowledged: set[str] = field(default_factory=set)
    """Calls that a later prompt contains."""
    workers: dict[str, str] = field(default_factory=dict)
    """Completion segment to the worker that sampled it and has its prefix cached."""
    experts: StoredExperts = field(default_factory=StoredExperts)
    completions: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """Call id to the segment that it sampled and the policy that sampled it."""
    tokens: int = 0
    """Tokens sampled and committed."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused requests by the kind of their problem."""
    requests: int = 0
    """Requests that are open now."""
    prompts: dict[str, int] = field(default_factory=dict)
    """How often each prompt segment was asked."""
    opened_at: float = field(default_factory=time.monotonic)
    """`time.monotonic` at its opening, which may have been in an earlier process."""
    _begun: set[str] = field(default_factory=set)
    """Calls whose prefixes are all in `seen_prefixes`: those that began in this process."""
    _readers: dict[str, BodyReader] = field(default_factory=dict)

    @classmethod
    def of(cls, row: SessionRow) -> "Session":
        """A session without its calls."""
        options = SessionOptions.model_validate(row.options)
        lineages = Lineages(row.rollout_id, row.id)
        watch = ContractWatch(options.contracts)
        tracker = OrchestrationTracker(SessionOrchestration(row.rollout_id))
        opened_at = time.monotonic() - row.age_s
        return cls(row, _sampling(row), options, lineages, watch, tracker, row.sealed, opened_at=opened_at)

    @classmethod
    def load(
        cls,
        row: SessionRow,
        segments: Sequence[Segment],
        recorded: Sequence[RecordedCall],
        agents: Sequence[AgentRow],
        stored_events: Sequence[EventRow],
        read: ReadSampled,
        asked: Mapping[str, ModelRequest],
    ) -> "Session":
        """Restore a session from its stored rows. `stored_events` has its rollout's events, `asked` the
        requests of its latest branches by call id.
        """
        # Repeats, in the order of the calls, what `remember` and `record` did when they were live. Whatever
        # these two change must be restored here too, or a session behaves differently after a restart.
        session = cls.of(row)
        session.policy_contexts = _policy_contexts(row.id, segments, recorded)
        by_id = {agent.id: agent for agent in agents}
        # Not every request is read again, and a session's tools rarely change.
        offered = tuple({tool.name: tool for request in asked.values() for tool in request.tools}.values())
        answers = dict[str, Message]()
        for call in recorded:
            policy_context = session.policy_context(call.policy_id)
            if call.agent_id is not None:
                session.lineages.begin(by_id[call.agent_id], call.id)
            policy_context.conversations.begin(call.id, asked.get(call.id), call.parent_call_id)
            session.next_ordinal = max(session.next_ordinal, call.ordinal + 1)
            policy_context.seen_prefixes.add(call.chain_digest)
            session.tokens += call.completion_len or 0
            # Seeds count the calls of a prompt. A bare intent is sampled again under its old place in that
            # count, so it must not take a place of its own.
            if call.status != "intent":
                session.prompts[call.prompt_segment] = session.prompts.get(call.prompt_segment, 0) + 1
            if call.status == "acknowledged":
                session.acknowledged.add(call.id)
            # "committed" without a delivery note: the process died around the moment of the delivery, so
            # the client may or may not have the answer. `_left_over` decides.
            if call.status in ("intent", "committed", "undelivered"):
                session.unanswered.setdefault(call.request_digest, deque()).append(call)
            if call.completion_segment is not None and call.answer_digest is not None:
                session.completions[call.id] = call.completion_segment, call.policy_id
                answer = answers[call.id] = read(
                    policy_context.forest.segments[call.completion_segment].ids, call.policy_id, offered
                )
                policy_context.forest.add_replays(call.chain_digest, answer, call.answer_digest)
                session.lineages.end(call.id, answer)
                session.watched(call.id, call.completion_len or 0, answer)
                policy_context.conversations.answer(call.id, answer, call.finish_reason or "")
                policy_context.seen_prefixes.add(call.answer_digest)
        session.tracker = OrchestrationTracker.load(row.rollout_id, stored_events, recorded, agents, answers)
        refused = [event for event in stored_events if _is_refusal(event, row.id)]
        session.refused.update(str(event.attributes.get("problem")) for event in refused)
        return session

    def policy_context(self, policy_id: str | None) -> PolicyContext:
        """A policy's view of the session; created on first use."""
        if policy_id not in self.policy_contexts:
            self.policy_contexts[policy_id] = PolicyContext(Forest(self.row.id))
        return self.policy_contexts[policy_id]

    def reader(self, dialect: str) -> BodyReader:
        """Reads the bodies that this session sends in a dialect."""
        return self._readers.setdefault(dialect, BodyReader())

    @property
    def left(self) -> int:
        """How many calls in flight have lost their clients."""
        return sum(not call.listeners for call in self.live.values())

    @property
    def refusals(self) -> int:
        """How many requests were refused because of what they were."""
        return sum(self.refused[kind] for kind in OWN_FAULT)

    def refuse(self, kind: str) -> bool:
        """Count a refused request. Whether it must be recorded."""
        self.refused[kind] += 1
        # Those that count against the budget are all recorded, so that a restart gives none of them back;
        # the budget bounds them. Of every other kind a harness may send any number.
        return kind in OWN_FAULT or self.refused[kind] <= _RECORDED

    @property
    def most_refusals(self) -> int:
        """How many requests may be refused. Beyond that every request is."""
        return max(_REFUSALS, self.row.limits.get("turns") or 0)

    def limit_reached(self, new_calls: int) -> Problem | None:
        """The limit that forbids `new_calls` more calls; None if they are allowed.

        A request that was refused because of what it was counts as a turn.
        """
        limits = self.row.limits
        turns = limits.get("turns")
        tokens = limits.get("tokens")
        wall_s = limits.get("wall_s")
        if turns is not None and self.next_ordinal + self.refusals + new_calls > turns:
            return Problem("limit", f"This session's limit of {turns} model calls is reached.", limit="turns")
        if tokens is not None and self.tokens >= tokens:
            return Problem(
                "limit", f"This session's limit of {tokens} sampled tokens is reached.", limit="tokens"
            )
        if wall_s is not None and time.monotonic() - self.opened_at > wall_s:
            return Problem("limit", f"This session's {wall_s:g} seconds are over.", limit="wall_s")
        return self.watch.refusal(sum(call_id in self.lineages.of_call for call_id in self.live), new_calls)

    def tokens_left(self) -> int | None:
        """Tokens that may still be sampled; None if there is no limit."""
        limit = self.row.limits.get("tokens")
        return None if limit is None else max(1, limit - self.tokens)

    def rejoin(self, digest: str, *, retry: bool) -> Call | RecordedCall | None:
        """The earlier call that a request retries, of this process or an earlier one; None for a new request.

        A request is a retry if the client says so, or if the connection of an equal request closed before the
        client could act on its answer.
        """
        # Calls without a client come first: when several equal requests lose their connections and all come
        # back, each gets a call of its own. A declared retry joins a call that still has a client only as
        # the last choice, since equal requests in flight together are separate calls.
        equal = [call for call in self.recent.equal(digest) if call.problem is None and not call.aborted]
        abandoned = next((call for call in equal if not call.listeners and not call.acted), None)
        return abandoned or self._left_over(digest, retry=retry) or (equal[0] if equal and retry else None)

    def resume(self, stored: RecordedCall) -> None:
        """Note that a call of an earlier process has a client again."""
        self.unanswered[stored.request_digest].remove(stored)

    def _left_over(self, digest: str, *, retry: bool) -> RecordedCall | None:
        """The call of an earlier process that a request retries.

        An answer that was committed just before its process ended may have reached the client, so only a
        declared retry gets it again.
        """
        left = self.unanswered.get(digest, ())
        lost = next((call for call in left if call.status != "committed"), None)
        return lost or (next(iter(left), None) if retry else None)

    def seed(self, prompt_segment: str, prompt_hash: str) -> int | None:
        """The seed of the next call with this prompt, derived from the session's seed, the prompt and the
        number of earlier calls with it.

        It does not depend on the order of arrival, so a rollout with concurrent calls is reproducible.
        """
        count = self.prompts.get(prompt_segment, 0)
        self.prompts[prompt_segment] = count + 1
        if self.sampling.seed is None:
            return None
        digest = hashlib.blake2b(
            f"{self.sampling.seed}:{prompt_hash}:{count}".encode(), digest_size=8
        ).digest()
        return int.from_bytes(digest, "little") >> 2

    def remember(self, call: Call, chain: Sequence[str]) -> None:
        """Add a call that begins now."""
        parent = call.prompt.parent
        policy_context = self.policy_context(call.policy_id)
        known = 0 if parent is None or parent.call_id not in self._begun else parent.matched
        policy_context.seen_prefixes.add_request(chain, known)
        if chain:
            self._begun.add(call.id)
        policy_context.conversations.begin(call.id, call.request, None if parent is None else parent.call_id)
        self.live[call.id] = call
        self.recent.add(call)
        self.next_ordinal = max(self.next_ordinal, call.ordinal + 1)

    def record(self, call: Call, segment: Segment, answer: Message, answer_digest: str) -> None:
        """Add a committed call: later requests can continue it."""
        policy_context = self.policy_context(call.policy_id)
        policy_context.forest.graft(call.id, segment, answer_digest)
        policy_context.forest.add_replays(call.chain, answer, answer_digest)
        self.lineages.end(call.id, answer)
        self.watched(call.id, len(segment.ids), answer)
        policy_context.conversations.answer(call.id, answer, call.sampled.finish_reason)
        policy_context.seen_prefixes.add(answer_digest)
        self.workers[segment.id] = call.sampled.worker
        self.experts.stored(call, segment.id)
        self.completions[call.id] = segment.id, call.policy_id
        self.tokens += len(segment.ids)

    def decided(
        self, call: Call, status: CallStatus, answer: Message, answer_digest: str
    ) -> OrchestrationRows | None:
        """The orchestration rows of a call that is about to be committed."""
        # No client can act on an aborted answer, so its tool calls never start anything.
        if status == "aborted":
            self.tracker.failed(call.id)
            return None
        agent = self.lineages.of_call.get(call.id)
        return self.tracker.answered(call.id, agent, answer, call.sampled.finish_reason, answer_digest)

    def watched(self, call_id: str, tokens: int, answer: Message) -> None:
        """Check an answer against the session's contracts. Side calls have no agent and are exempt."""
        agent = self.lineages.of_call.get(call_id)
        if agent is not None:
            self.watch.committed(call_id, agent, tokens, answer)


class SessionTable:
    """Open sessions by key and by id."""

    def __init__(self, store: TraceStore, read: ReadSampled) -> None:
        self._store = store
        self._read = read
        self._by_id: dict[str, Session] = {}
        self._by_key: dict[str, Session] = {}
        self._loading: dict[str, asyncio.Task[Session | None]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def opened(self, row: SessionRow, key: str) -> None:
        """Add a session that was just opened here."""
        self._by_key[key] = self._by_id[row.id] = Session.of(row)

    async def by_key(self, key: str) -> Session | None:
        """The session that a key opens; None if there is none."""
        session = self._by_key.get(key)
        # A stale session is replaced only when its calls have ended: until then they would write to the
        # object that is being dropped, and the loaded copy would miss what they record.
        if session is not None and session.stale and not session.live:
            self.forget(session)
            session = None
        if session is None:
            session = await self._load(hash_key(key), lambda: self._read_session(key=key))
            if session is not None and not session.sealed:
                self._by_key[key] = session
        return session

    async def by_id(self, session_id: str) -> Session | None:
        """A session by id, for the control routes; None if there is none."""
        session = self._by_id.get(session_id)
        if session is not None:
            return session
        return await self._load(session_id, lambda: self._read_session(session_id=session_id))

    async def earlier(
        self, session: Session, call_id: str, parse: Callable[[bytes], ModelRequest]
    ) -> tuple[ModelRequest, Message]:
        """The request and answer of a committed call of a session. Raises `RequestProblem` if there is no
        such call.
        """
        recent = session.recent.get(call_id)
        if recent is not None and recent.answer is not None:
            return recent.request, recent.answer.message
        sampled = session.completions.get(call_id)
        body = None
        if sampled is not None:
            body = await asyncio.to_thread(self._store.read, lambda conn: bodies.of_call(conn, call_id))
        if sampled is None or body is None:
            raise not_found(response_id(call_id))
        segment, policy_id = sampled
        request = parse(body)
        return request, self._read(
            session.policy_context(policy_id).forest.segments[segment].ids, policy_id, request.tools
        )

    def open(self) -> list[Session]:
        """Sessions in memory."""
        return list(self._by_id.values())

    def forget(self, session: Session) -> None:
        """Drop a session from memory. It is loaded again when it is next used."""
        self._by_id.pop(session.row.id, None)
        for key in [key for key, known in self._by_key.items() if known is session]:
            del self._by_key[key]

    async def _load(self, what: str, read: Callable[[], Session | None]) -> Session | None:
        """Load a session, once for all concurrent callers."""
        task = self._loading.get(what)
        if task is None:
            task = self._loading[what] = asyncio.create_task(asyncio.to_thread(read))
            task.add_done_callback(lambda _: self._loading.pop(what, None))
        # Shielded: the client that came first may leave, and others wait for the same load.
        session = await asyncio.shield(task)
        if session is None or session.sealed:
            return session
        # A load by key and a load by id may run side by side. `setdefault` lets one object win, since a
        # session with two objects would number its calls twice.
        return self._by_id.setdefault(session.row.id, session)

    def _read_session(self, *, key: str | None = None, session_id: str = "") -> Session | None:
        row = self._store.read(
            lambda conn: sessions.get(conn, session_id) if key is None else sessions.by_key(conn, key)
        )
        if row is None:
            return None
        if row.sealed:
            return Session.of(row)
        segments = self._store.read(lambda conn: calls.segments_of(conn, [row.id]))
        recorded = self._store.read(lambda conn: calls.of_sessions(conn, [row.id]))
        known = self._store.read(lambda conn: agents.of_sessions(conn, [row.id]))
        asked = latest_requests(
            self._store, recorded, segments, self._read, SessionOptions.model_validate(row.options)
        )
        stored_events = self._store.read(lambda conn: events.of_rollout(conn, row.rollout_id))
        return Session.load(row, list(segments.values()), recorded, known, stored_events, self._read, asked)


def _is_refusal(event: EventRow, session_id: str) -> bool:
    return event.kind == "refused_request" and event.attributes.get("session_id") == session_id


def answer_digest(chain: str, answer: Message) -> str:
    """Digest of a conversation with digest `chain` once `answer` follows."""
    return chain_digests(chain, (answer,))[0]


def _policy_contexts(
    session_id: str, segments: Sequence[Segment], recorded: Sequence[RecordedCall]
) -> dict[str | None, PolicyContext]:
    """The policies' views, each built from the segments of its own calls. Equal prompts of two policies are
    two segments.
    """
    policy_of = {
        name: call.policy_id for call in recorded for name in (call.prompt_segment, call.completion_segment)
    }
    out = {}
    for policy_id in {call.policy_id for call in recorded}:
        own = [segment for segment in segments if policy_of.get(segment.id) == policy_id]
        asked = [call for call in recorded if call.policy_id == policy_id]
        out[policy_id] = PolicyContext(Forest.load(session_id, own, asked))
    return out


def _sampling(row: SessionRow) -> Sampling:
    """The stored sampling parameters. JSON has no tuples, so lists become tuples again."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in row.sampling.items()
    }
    return Sampling(**fields)
