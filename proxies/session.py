"""Sessions: what a key gives access to, held in memory exactly as the store can give it back.

A session is kept from its opening on; one that was opened elsewhere is loaded when its key is first used.
After a restart its forest is built again from the recorded calls, so the same conversation goes on along the
same branch. Whatever changes a session runs between two awaits, so calls of one session may be concurrent
without a lock.
"""

import asyncio
import hashlib
import time
from collections import deque
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
from harnessgym.tokens import TokenIds
from harnessgym.traces.forest import Forest
from harnessgym.traces.orchestration.rows import OrchestrationRows
from harnessgym.traces.orchestration.tracker import SessionOrchestration
from proxies.call import Call
from proxies.contract_watch import ContractWatch
from proxies.conversations import PolicyContext
from proxies.dialect import ModelRequest, Problem
from proxies.lineage import Lineages
from proxies.orchestration import OrchestrationTracker
from proxies.previous import not_found, response_id
from proxies.reading import BodyReader
from proxies.session_restore import latest_requests

ReadAnswer = Callable[[TokenIds, str | None], Message]
"""Sampled tokens, and the policy that sampled them, to the message they say."""
_REMEMBERED = 64
"""Calls of a session that are over and are kept for clients that ask again although they were answered."""


@dataclass
class Session:
    """One open session."""

    row: SessionRow
    sampling: Sampling
    options: SessionOptions
    lineages: Lineages
    watch: ContractWatch
    traffic: OrchestrationTracker
    sealed: bool = False
    stale: bool = False
    """A write failed, so that memory and store differ: load it again before the next call."""
    next_ordinal: int = 0
    strands: dict[str | None, PolicyContext] = field(default_factory=dict)
    """By policy."""
    live: dict[str, Call] = field(default_factory=dict)
    """Calls in flight by id."""
    recent: list[Call] = field(default_factory=list)
    """Calls of this process that a retry may join, oldest first: see `keep`."""
    unanswered: "dict[str, deque[RecordedCall]]" = field(default_factory=dict)
    """Calls of an earlier process that no client is known to have got, by request digest, in the order
    they began. Equal requests that were in flight together are calls of their own."""
    acknowledged: set[str] = field(default_factory=set)
    """Calls that a later prompt contains."""
    workers: dict[str, str] = field(default_factory=dict)
    """Completion segment to the worker that sampled it and has its prefix cached."""
    completions: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    """Call to the segment that it sampled, and the policy that did."""
    tokens: int = 0
    """Tokens sampled and committed."""
    refusals: int = 0
    """Refused requests that are recorded as events; their number is bounded."""
    prompts: dict[str, int] = field(default_factory=dict)
    """How often each prompt segment was asked."""
    opened_at: float = field(default_factory=time.monotonic)
    """`time.monotonic` when it was opened, be it by an earlier process."""
    _begun: set[str] = field(default_factory=set)
    """Calls of which all leading parts are in `heads`: those that began in this process."""
    _readers: dict[str, BodyReader] = field(default_factory=dict)

    @classmethod
    def of(cls, row: SessionRow) -> "Session":
        """A session without its calls."""
        options, lineages = SessionOptions.model_validate(row.options), Lineages(row.rollout_id, row.id)
        watch, traffic = (
            ContractWatch(options.contracts),
            OrchestrationTracker(SessionOrchestration(row.rollout_id)),
        )
        opened_at = time.monotonic() - row.age_s
        return cls(row, _sampling(row), options, lineages, watch, traffic, row.sealed, opened_at=opened_at)

    @classmethod
    def load(
        cls,
        row: SessionRow,
        segments: Sequence[Segment],
        recorded: Sequence[RecordedCall],
        agents: Sequence[AgentRow],
        happened: Sequence[EventRow],
        read: ReadAnswer,
        asked: Mapping[str, ModelRequest],
    ) -> "Session":
        """A session as the store has it. `asked` has the requests of its latest branches, by call;
        `happened`, its rollout's events.
        """
        session = cls.of(row)
        session.strands = _strands(row.id, segments, recorded)
        by_id = {agent.id: agent for agent in agents}
        answers = dict[str, Message]()
        for call in recorded:
            strand = session.strand(call.policy_id)
            if call.agent_id is not None:
                session.lineages.begin(by_id[call.agent_id], call.id)
            strand.conversations.begin(call.id, asked.get(call.id), call.parent_call_id)
            session.next_ordinal = max(session.next_ordinal, call.ordinal + 1)
            strand.heads.add(call.chain_digest)
            session.tokens += call.completion_len or 0
            if call.status != "intent":
                session.prompts[call.prompt_segment] = session.prompts.get(call.prompt_segment, 0) + 1
            if call.status == "acknowledged":
                session.acknowledged.add(call.id)
            if call.status in ("intent", "committed", "undelivered"):
                session.unanswered.setdefault(call.request_digest, deque()).append(call)
            if call.completion_segment is not None and call.answer_digest is not None:
                session.completions[call.id] = call.completion_segment, call.policy_id
                answer = answers[call.id] = read(
                    strand.forest.segments[call.completion_segment].ids, call.policy_id
                )
                strand.forest.add_replays(call.chain_digest, answer, call.answer_digest)
                session.lineages.end(call.id, answer)
                session.watched(call.id, call.completion_len or 0, answer)
                strand.conversations.answer(call.id, answer, call.finish_reason or "")
                strand.heads.add(call.answer_digest)
        session.traffic = OrchestrationTracker.load(row.rollout_id, happened, recorded, agents, answers)
        return session

    def strand(self, policy_id: str | None) -> PolicyContext:
        """What a policy was asked and said."""
        if policy_id not in self.strands:
            self.strands[policy_id] = PolicyContext(Forest(self.row.id))
        return self.strands[policy_id]

    def read(self, dialect: str, body: bytes) -> bytes:
        """A request's body, with what was read of it."""
        if dialect not in self._readers:
            self._readers[dialect] = BodyReader()
        return self._readers[dialect].read(body)

    def limit_reached(self, new_calls: int) -> Problem | None:
        """The budget that leaves no room for so many more calls; None if there is room."""
        limits = self.row.limits
        turns = limits.get("turns")
        tokens = limits.get("tokens")
        wall_s = limits.get("wall_s")
        if turns is not None and self.next_ordinal + new_calls > turns:
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
        """The call that a request asks for again, if it is a retry: one of this process, or one that an
        earlier process left.

        It is one if the client says so, or if an equal request's connection closed before the client could
        act on its answer. Calls without a client come first, so that equal requests that all come back get
        back one call each.
        """
        equal = [
            call
            for call in reversed(self.recent)
            if call.digest == digest and call.problem is None and not call.aborted
        ]
        abandoned = next((call for call in equal if not call.listeners and not call.acted), None)
        return abandoned or self._left_over(digest, retry=retry) or (equal[0] if equal and retry else None)

    def take_up(self, stored: RecordedCall) -> None:
        """A call that an earlier process left has a client again."""
        self.unanswered[stored.request_digest].remove(stored)

    def _left_over(self, digest: str, *, retry: bool) -> RecordedCall | None:
        """An answer whose process ended right after its commit may have arrived, so only a declared retry
        gets it again.
        """
        left = self.unanswered.get(digest, ())
        lost = next((call for call in left if call.status != "committed"), None)
        return lost or (next(iter(left), None) if retry else None)

    def seed(self, prompt_segment: str, prompt_hash: str) -> int | None:
        """The seed of the next call with this prompt: fixed by the session's seed, the prompt, and how often
        it came before.

        Arrival order does not enter, so a rollout whose calls race each other samples the same tokens again.
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
        """A call of this session begins."""
        parent = call.prompt.parent
        strand = self.strand(call.policy_id)
        known = 0 if parent is None or parent.call_id not in self._begun else parent.matched
        strand.heads.update(chain[known:])
        if chain:
            self._begun.add(call.id)
        strand.conversations.begin(call.id, call.request, None if parent is None else parent.call_id)
        self.live[call.id] = call
        self.keep(call)
        self.next_ordinal = max(self.next_ordinal, call.ordinal + 1)

    def keep(self, call: Call) -> None:
        """Keep a call for retries. Until a client was given its answer it is never forgotten, however many
        there are.

        A retry of a call that is forgotten is a second call, so only those that are over count against the
        limit.
        """
        self.recent.append(call)
        forgotten = {known.id for known in [known for known in self.recent if known.over][:-_REMEMBERED]}
        self.recent = [known for known in self.recent if known.id not in forgotten]

    def record(self, call: Call, segment: Segment, answer: Message, answer_digest: str) -> None:
        """A call is committed: later requests can continue it."""
        strand = self.strand(call.policy_id)
        strand.forest.graft(call.id, segment, answer_digest)
        strand.forest.add_replays(call.chain, answer, answer_digest)
        self.lineages.end(call.id, answer)
        self.watched(call.id, len(segment.ids), answer)
        strand.conversations.answer(call.id, answer, call.sampled.finish_reason)
        strand.heads.add(answer_digest)
        self.workers[segment.id] = call.sampled.worker
        self.completions[call.id] = segment.id, call.policy_id
        self.tokens += len(segment.ids)

    def decided(
        self, call: Call, status: CallStatus, answer: Message, answer_digest: str
    ) -> OrchestrationRows | None:
        """What a call that is about to be committed decides. On an answer that was ended early nobody can
        act.
        """
        if status == "aborted":
            self.traffic.failed(call.id)
            return None
        agent = self.lineages.of_call.get(call.id)
        return self.traffic.answered(call.id, agent, answer, call.sampled.finish_reason, answer_digest)

    def watched(self, call_id: str, tokens: int, answer: Message) -> None:
        """Contracts are about what agents do; a side call is of none."""
        agent = self.lineages.of_call.get(call_id)
        if agent is not None:
            self.watch.committed(call_id, agent, tokens, answer)


class SessionTable:
    """Open sessions by key and by id."""

    def __init__(self, store: TraceStore, read: ReadAnswer) -> None:
        self._store = store
        self._read = read
        self._by_id: dict[str, Session] = {}
        self._by_key: dict[str, Session] = {}
        self._loading: dict[str, asyncio.Task[Session | None]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def opened(self, row: SessionRow, key: str) -> None:
        """A session that was opened here: there is nothing of it to load."""
        self._by_key[key] = self._by_id[row.id] = Session.of(row)

    async def by_key(self, key: str) -> Session | None:
        """The session that a key opens."""
        session = self._by_key.get(key)
        if session is not None and session.stale and not session.live:
            self.forget(session)
            session = None
        if session is None:
            session = await self._load(hash_key(key), lambda: self._read_session(key=key))
            if session is not None and not session.sealed:
                self._by_key[key] = session
        return session

    async def by_id(self, session_id: str) -> Session | None:
        """A session by id, for the control routes."""
        found = self._by_id.get(session_id)
        return (
            found
            if found is not None
            else await self._load(session_id, lambda: self._read_session(session_id=session_id))
        )

    async def earlier(
        self, session: Session, call_id: str, parse: Callable[[bytes], ModelRequest]
    ) -> tuple[ModelRequest, Message]:
        """What a committed call of a session was asked and answered. Raises `RequestProblem` if there is
        no such call.
        """
        recent = next(
            (call for call in session.recent if call.id == call_id and call.answer is not None), None
        )
        if recent is not None and recent.answer is not None:
            return recent.request, recent.answer.message
        sampled = session.completions.get(call_id)
        body = None
        if sampled is not None:
            body = await asyncio.to_thread(self._store.read, lambda conn: bodies.of_call(conn, call_id))
        if sampled is None or body is None:
            raise not_found(response_id(call_id))
        segment, policy_id = sampled
        return parse(body), self._read(session.strand(policy_id).forest.segments[segment].ids, policy_id)

    def open(self) -> list[Session]:
        """Sessions in memory."""
        return list(self._by_id.values())

    def forget(self, session: Session) -> None:
        """Drop a session from memory; the store gives it back when it is asked for again."""
        self._by_id.pop(session.row.id, None)
        for key in [key for key, known in self._by_key.items() if known is session]:
            del self._by_key[key]

    async def _load(self, what: str, read: Callable[[], Session | None]) -> Session | None:
        """Load once, however many ask at the same time."""
        task = self._loading.get(what)
        if task is None:
            task = self._loading[what] = asyncio.create_task(asyncio.to_thread(read))
            task.add_done_callback(lambda _: self._loading.pop(what, None))
        session = await asyncio.shield(task)
        if session is None or session.sealed:
            return session
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
        happened = self._store.read(lambda conn: events.of_rollout(conn, row.rollout_id))
        return Session.load(row, list(segments.values()), recorded, known, happened, self._read, asked)


def answer_digest(chain: str, answer: Message) -> str:
    """Digest of a conversation with digest `chain` once `answer` follows."""
    return chain_digests(chain, (answer,))[0]


def _strands(
    session_id: str, segments: Sequence[Segment], recorded: Sequence[RecordedCall]
) -> dict[str | None, PolicyContext]:
    """Stored segments by the policy whose calls they are of; equal prompts of two policies are two
    segments.
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
    """JSON has no tuples."""
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in row.sampling.items()
    }
    return Sampling(**fields)
