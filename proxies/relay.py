"""Turns a request into a committed call: continue the session, write the intent, sample, commit, settle.

Each call is a task of its own, to which clients listen. A client may leave and come back without affecting
the call; a call without any listener ends after a grace time.
"""

import asyncio
import logging
import os
import re
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

from harnessgym.errors import HarnessGymError, StoreError, StoreUnavailable, UpstreamError, UpstreamLost
from harnessgym.harness import SideCallRule
from harnessgym.message import Message, Sampling, context_digest
from harnessgym.store.agents import AgentRow
from harnessgym.store.bodies import split_body
from harnessgym.store.calls import CallIntent, CallOutcome, CallStatus, RecordedCall, Segment
from harnessgym.store.tables import new_id
from harnessgym.tokens import TokenArray, hash_ids, spans_of
from harnessgym.traces.forest import Forest
from proxies.answerer import Answerer
from proxies.call import Call, SampledTokens
from proxies.constraints import constrained, refuse_images
from proxies.continuation import Break, Prompt, continue_from
from proxies.conversations import PolicyContext
from proxies.dialect import (
    Answer,
    Finished,
    FinishReason,
    ModelRequest,
    Problem,
    RequestProblem,
    Stamp,
    TokenUsage,
)
from proxies.fairness import FairThreads
from proxies.feed import TokenFeed
from proxies.parsers.raw import RawParser
from proxies.raw_prompt import raw_chain
from proxies.recorder import Recorder
from proxies.renderers.long_texts import KnownTokens, LongText, TooManyTokens
from proxies.served_policies import ServedPolicies, ServedPolicy
from proxies.session import Session, answer_digest
from proxies.upstream import TextRefusal
from proxies.work_slots import WorkSlots
from proxies.workers import WorkerTable

T = TypeVar("T")

_CLAUDE_CODE = r"\Ax-anthropic-billing-header:"
BUILT_IN = (
    SideCallRule(
        kind="side", name="quota probe", no_tools=True, max_tokens=1, user_pattern=r"\A(?:quota|count)\Z"
    ),
    SideCallRule(kind="side", name="title", no_tools=True, json_schema=True, system_pattern=_CLAUDE_CODE),
)
"""Side-call rules of every session, tried after its own. They know Claude Code by what it says, because the
Claude Agent SDK runs it under other programs' names.
"""


def classify(request: ModelRequest, rules: Sequence[SideCallRule]) -> SideCallRule | None:
    """The first rule that matches a request; None for the policy's own calls."""
    return next((rule for rule in (*rules, *BUILT_IN) if _meets(request, rule)), None)


def _meets(request: ModelRequest, rule: SideCallRule) -> bool:
    return (
        not (rule.no_tools and request.tools)
        and not (rule.json_schema and request.output is None)
        and rule.model in ("", request.model)
        and (
            not rule.max_tokens or (request.max_tokens is not None and request.max_tokens <= rule.max_tokens)
        )
        and (not rule.system_prefix or _system(request).startswith(rule.system_prefix))
        and (not rule.system_pattern or re.search(rule.system_pattern, _system(request)) is not None)
        and (not rule.user_pattern or re.search(rule.user_pattern, _last_user(request)) is not None)
    )


def _system(request: ModelRequest) -> str:
    return next((message.content for message in request.messages if message.role == "system"), "")


def _last_user(request: ModelRequest) -> str:
    return next((message.content for message in reversed(request.messages) if message.role == "user"), "")


log = logging.getLogger(__name__)
_MEMBERS = {kind: tuple(field.name for field in fields(kind)) for kind in (Sampling, TokenUsage)}


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Limits on every call of a relay."""

    model: str
    run_id: str
    max_length: int
    """Prompt and completion together, in tokens."""
    max_in_flight: int
    grace_s: float
    """How long a call keeps running after its last client left."""
    max_body: int = 64 << 20
    """Maximum size of a request's body, in bytes."""


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request as a client sent it."""

    protocol: str
    request: ModelRequest
    body: bytes
    digest: str
    """Digest of route and body."""
    call_prefix: str
    """Prefix of the protocol's tool-call ids."""
    retry: bool
    """Whether the client declares this request a retry."""


class Relay:
    """Runs the calls of all sessions."""

    def __init__(
        self, recorder: Recorder, workers: WorkerTable, policies: ServedPolicies, limits: RelayLimits
    ) -> None:
        self.limits = limits
        self.workers = workers
        self.recorder = recorder
        self.policies = policies
        self.threads = FairThreads(max(1, (os.cpu_count() or 1) // 2))
        """For what would keep the event loop from other sessions."""
        self.slots = WorkSlots(hurry=recorder.flush)
        self._answerer = Answerer(workers, policies, limits.run_id, self.slots)
        self.in_flight = 0
        self.started = 0
        self.tokens = 0

    async def calls(self, session: Session, incoming: IncomingRequest) -> list[Call]:
        """The calls that answer a request, one per sibling: the earlier ones if it is a retry, otherwise new
        ones. Raises `RequestProblem` if the request is refused.
        """
        return await self._with_tokens(session, lambda known: self._calls(session, incoming, known))

    async def _with_tokens(self, session: Session, make: Callable[[KnownTokens], T]) -> T:
        """`make`, called again for each long text that it needs the tokens of. Until these are known, it must
        not change anything.
        """
        known = KnownTokens()
        while True:
            async with self.slots.piece(session.row.id, start=True):
                try:
                    with known:
                        return make(known)
                except LongText as unknown:
                    long = unknown
            encode = partial(long.encode, self.limits.max_length)
            try:
                known.add(long, await self.threads.run(session.row.id, encode))
            except TooManyTokens as refusal:
                raise self._overflow(refusal.tokens) from None

    def _calls(self, session: Session, incoming: IncomingRequest, known: KnownTokens) -> list[Call]:
        # Nothing here awaits. From these checks to the queued intent no other request of the session can
        # come between, so ordinals, limits and the forest need no lock.
        if session.sealed:
            raise RequestProblem(
                Problem("sealed", "This session was sealed while the request was read. Do not retry.")
            )
        if session.stale:
            detail = (
                "A write of this session failed. It is loaded from the store again once its calls have ended."
            )
            raise RequestProblem(Problem("unavailable", detail, retry_after_s=1.0))
        siblings = [
            incoming,
            *(replace(incoming, digest=f"{incoming.digest}:{n}") for n in range(1, incoming.request.n)),
        ]
        earlier = [session.rejoin(sibling.digest, retry=incoming.retry) for sibling in siblings]
        self._check_room(session, earlier)
        incoming = replace(incoming, request=self._constrained(session, incoming.request))
        siblings = [replace(sibling, request=incoming.request) for sibling in siblings]
        answers = []
        for sibling, before in zip(siblings, earlier, strict=True):
            answers.append(self._answer(session, sibling, before))
            # The session has changed, so the others must not be given up.
            known.complete = True
        return answers

    async def count(self, session: Session, request: ModelRequest) -> int:
        """The number of tokens of a request's prompt. Records nothing. Raises `RequestProblem`."""
        request = self._constrained(session, request)
        policy = self.policies.named(request.model)

        def prompt(_: KnownTokens) -> Prompt:
            chain = self._chain(session.policy_context(policy.id), request)
            return self._prompt(session, policy, request, chain)

        return len((await self._with_tokens(session, prompt)).ids)

    def _constrained(self, session: Session, request: ModelRequest) -> ModelRequest:
        if self.workers.speaks(session.options.upstream):
            return request
        return constrained(request, session.options.constraints)

    async def close(self, sessions: Sequence[Session]) -> None:
        """Interrupt every call and wait until its tokens so far are recorded."""
        tasks = [call.task for session in sessions for call in session.live.values() if call.task is not None]
        for session in sessions:
            for call in list(session.live.values()):
                call.interrupt()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check_room(self, session: Session, earlier: Sequence[Call | RecordedCall | None]) -> None:
        """Raises `RequestProblem` if the calls that must be sampled exceed a limit."""
        # A resumed intent is sampled, so it counts as load; but it has its ordinal already, so it does not
        # count against the session's limits again.
        sampled = sum(
            not isinstance(known, Call) and (known is None or known.completion_segment is None)
            for known in earlier
        )
        if sampled and self.in_flight + sampled > self.limits.max_in_flight:
            detail = (
                f"The proxy has {self.in_flight} calls in flight, its limit is {self.limits.max_in_flight}."
            )
            raise RequestProblem(Problem("overloaded", detail, retry_after_s=1.0))
        new = sum(known is None for known in earlier)
        if new and (reached := session.limit_reached(new)):
            raise RequestProblem(reached)

    def _answer(
        self, session: Session, incoming: IncomingRequest, earlier: Call | RecordedCall | None
    ) -> Call:
        if isinstance(earlier, Call):
            return earlier
        if earlier is None:
            return self._start(session, incoming)
        resume = self._resume if earlier.completion_segment is None else self._restore
        return resume(session, incoming, earlier)

    @staticmethod
    def _chain(policy_context: PolicyContext, request: ModelRequest) -> list[str]:
        if request.prompt is not None:
            return raw_chain(request.prompt)
        return policy_context.forest.chain(context_digest(request.tools), request.messages)

    def _prompt(
        self, session: Session, policy: ServedPolicy, request: ModelRequest, chain: Sequence[str]
    ) -> Prompt:
        policy_context = session.policy_context(policy.id)
        history = session.row.history
        if not policy.language.sees_images and not self.workers.speaks(session.options.upstream):
            # The messages before a recorded answer were checked when their own request came.
            answered = policy_context.forest.attach(chain)
            refuse_images(request.messages[0 if answered is None else answered.matched :])
        if request.prompt is not None:
            prompt = policy.raw.prompt(policy_context.forest, policy_context.seen_prefixes, request, history)
        else:
            known = policy_context.conversations
            prompt = continue_from(
                policy_context.forest,
                policy_context.seen_prefixes,
                known,
                chain,
                request,
                policy.language,
                history,
            )
        self._check_length(prompt)
        return prompt

    def _start(self, session: Session, incoming: IncomingRequest) -> Call:
        request = incoming.request
        policy = self.policies.named(request.model)
        policy_context = session.policy_context(policy.id)
        context = context_digest(request.tools)
        chain = self._chain(policy_context, request)
        prompt = self._prompt(session, policy, request, chain)
        parent = prompt.parent
        segment, new = policy_context.forest.add_prompt(
            prompt.added, None if parent is None else parent.segment_id
        )
        call = self._make(session, incoming, prompt, segment, chain[-1], new_id(), session.next_ordinal)
        # Side calls (titles, quota probes) are recorded, but belong to no agent and start none.
        rule = classify(request, session.options.side_calls)
        agent = fresh = None
        if rule is None or rule.kind != "side":
            parent_id = None if parent is None else parent.call_id
            agent, unknown = session.tracker.attribute(session.lineages, request, parent_id, context, chain)
            fresh = agent if unknown else None
            session.lineages.begin(agent, call.id)
        if prompt.broken is not None:
            call.prompt = replace(prompt, broken=_known_break(prompt.broken, rule, fresh))
        intent = self._intent(session, incoming, call, rule, agent)
        rows = session.tracker.asked(call, intent, agent, chain, fresh=fresh is not None)
        # The intent is queued before the task starts, so the call's outcome is behind it in the store's
        # queue.
        intended = self.recorder.intend(intent, segment if new else None, incoming.body, fresh, rows)
        if new:
            intended.add_done_callback(partial(_stored, policy_context.forest, segment))
        # A prompt that contains an answer proves that the harness received it.
        if parent is not None and parent.call_id not in session.acknowledged:
            session.acknowledged.add(parent.call_id)
            self.recorder.note(parent.call_id, "acknowledged")
        session.remember(call, chain)
        self._run(session, call, intended)
        return call

    def _resume(self, session: Session, incoming: IncomingRequest, stored: RecordedCall) -> Call:
        """Resume an intent that an earlier process left without outcome: the same call, sampled again."""
        forest = session.policy_context(stored.policy_id).forest
        prompt = Prompt(forest.ids(stored.prompt_segment), None, [], None)
        segment = forest.segments[stored.prompt_segment]
        call = self._make(session, incoming, prompt, segment, stored.chain_digest, stored.id, stored.ordinal)
        session.resume(stored)
        # An empty chain: the request's prefixes are not known to this process, so a call that continues this
        # one must add all of its own.
        session.remember(call, [])
        intended: Future[None] = Future()
        intended.set_result(None)
        self._run(session, call, intended)
        return call

    def _restore(self, session: Session, incoming: IncomingRequest, stored: RecordedCall) -> Call:
        """Serve an answer again that an earlier process committed. Nothing is sampled or written."""
        assert stored.completion_segment is not None
        prompt = Prompt([], None, [], None)
        segments = session.policy_context(stored.policy_id).forest.segments
        completion = segments[stored.completion_segment]
        chain = stored.chain_digest
        segment = segments[stored.prompt_segment]
        call = self._make(session, incoming, prompt, segment, chain, stored.id, stored.ordinal)
        feed = self._feed(call)
        feed.add(completion.ids)
        call.prompt_len = stored.prompt_len
        message = feed.finish()
        usage = TokenUsage(stored.prompt_len, len(completion.ids), reasoning_tokens=feed.reasoning_tokens)
        self._settle(call, feed, message, stored.finish_reason or "stop", usage)
        session.resume(stored)
        session.recent.add(call)
        return call

    def _check_length(self, prompt: Prompt) -> None:
        if len(prompt.ids) >= self.limits.max_length:
            raise self._overflow(len(prompt.ids))

    def _overflow(self, tokens: int) -> RequestProblem:
        most = self.limits.max_length
        return RequestProblem(
            Problem(
                "overflow",
                f"This model's maximum context length is {most} tokens. However, your messages resulted in "
                f"{tokens} tokens. Please reduce the length of the messages.",
                tokens=tokens,
                max_tokens=most,
            )
        )

    def _make(
        self,
        session: Session,
        incoming: IncomingRequest,
        prompt: Prompt,
        segment: Segment,
        chain: str,
        call_id: str,
        ordinal: int,
    ) -> Call:
        request = incoming.request
        policy = self.policies.named(request.model)
        sampling = session.sampling.limited(request.max_tokens).limited(
            self.limits.max_length - len(prompt.ids)
        )
        sampling = sampling.limited(session.tokens_left())
        # The seed is derived from the prompt and not from the ordinal, which depends on how concurrent calls
        # race.
        seed = session.seed(segment.id, hash_ids(prompt.ids))
        stop_token_ids = tuple(dict.fromkeys((*sampling.stop_token_ids, *policy.language.stop_token_ids)))
        return Call(
            id=call_id,
            ordinal=ordinal,
            digest=incoming.digest,
            call_prefix=incoming.call_prefix,
            request=request,
            prompt=prompt,
            prompt_len=len(prompt.ids),
            prompt_segment=segment.id,
            chain=chain,
            sampling=replace(
                sampling, seed=seed, stop=(*sampling.stop, *request.stop), stop_token_ids=stop_token_ids
            ),
            stamp=Stamp(call_id, request.model or self.limits.model, int(time.time())),
            policy_id=policy.id,
        )

    def _intent(
        self,
        session: Session,
        incoming: IncomingRequest,
        call: Call,
        rule: SideCallRule | None,
        agent: AgentRow | None,
    ) -> CallIntent:
        parent = call.prompt.parent
        broken = call.prompt.broken
        return CallIntent(
            id=call.id,
            session_id=session.row.id,
            rollout_id=session.row.rollout_id,
            ordinal=call.ordinal,
            protocol=incoming.protocol,
            kind="policy" if rule is None else rule.kind,
            side_call=None if rule is None else rule.name,
            agent_id=None if agent is None else agent.id,
            history=session.row.history,
            request_digest=incoming.digest,
            chain_digest=call.chain,
            prompt_len=call.prompt_len,
            prompt_hash=hash_ids(call.prompt.ids),
            prompt_segment=call.prompt_segment,
            upstream="",
            sampling_asked=dict(call.request.asked),
            sampling_applied=_members(call.sampling),
            parent_call_id=None if parent is None else parent.call_id,
            parent_evidence="none" if parent is None else "token_prefix",
            break_class=None if broken is None else broken.kind,
            break_detail=None if broken is None else broken.detail,
            policy_id=call.policy_id,
        )

    def _feed(self, call: Call) -> TokenFeed:
        language = self.policies.by_id(call.policy_id).language
        if call.request.prompt is not None:
            return TokenFeed(
                call, RawParser(language.renderer.written, stop_token_ids=language.stop_token_ids)
            )
        tools = bool(call.request.tools) and call.request.tool_choice != "none"
        return TokenFeed(call, language.parser(call_prefix=f"{call.call_prefix}{call.id}_", tools=tools))

    def _run(self, session: Session, call: Call, intended: "Future[None]") -> None:
        self.in_flight += 1
        self.started += 1
        self.slots.call_begun(session.row.id, intended)
        call.task = asyncio.create_task(self._drive(session, call, intended))

    async def _drive(self, session: Session, call: Call, intended: "Future[None]") -> None:
        """Run a call to its end: sampling, then committed, aborted or failed. It is settled and recorded in
        every case.
        """
        started = time.monotonic()
        feed = self._feed(call)
        try:
            # Only `Call.interrupt` cancels the task, and only while it samples. The tokens so far are real
            # policy samples, so they are committed as aborted and not thrown away.
            try:
                await self._answerer.answer(session, call, feed)
                status: CallStatus = "committed"
            except asyncio.CancelledError:
                status = "aborted"
            # From here on no interruption can cancel the commit.
            call.interruptible = False
            async with self.slots.piece(session.row.id):
                await self._commit(session, call, feed, status, started, intended)
        except Exception as error:
            if not isinstance(error, HarnessGymError):
                log.exception("Call %s failed inside the proxy.", call.id)
            feed.close()
            await self._fail(session, call, error, intended)
        finally:
            self.in_flight -= 1
            self.slots.call_ended(session.row.id)
            session.live.pop(call.id, None)
            call.release()

    async def _commit(
        self,
        session: Session,
        call: Call,
        feed: TokenFeed,
        status: CallStatus,
        started: float,
        intended: "Future[None]",
    ) -> None:
        sampled = call.sampled
        message = feed.finish()
        usage = TokenUsage(call.prompt_len, len(sampled.ids), sampled.cached_tokens, feed.reasoning_tokens)
        logprobs = None if sampled.text_only else array("f", sampled.logprobs)
        segment = Segment(
            new_id(), session.row.id, "completion", call.prompt_segment, TokenArray(sampled.ids), logprobs
        )
        digest = answer_digest(call.chain, message)
        outcome = CallOutcome(
            call_id=call.id,
            segment=segment,
            spans=spans_of(sampled.versions),
            answer_digest=digest,
            finish_reason=sampled.finish_reason,
            stop_token=sampled.stop_token,
            upstream=sampled.worker,
            usage=_members(usage),
            timings=_timings(sampled, started) | call.silence.timings(),
            status=status,
            body=None if sampled.body is None else split_body(sampled.body),
        )
        # Commit first, then change the session, then settle. A client can act on an answer only once it is
        # settled, so nothing it does can refer to a call that a crash would lose.
        await self.recorder.finish(outcome, session.decided(call, status, message, digest), intended)
        self.tokens += len(sampled.ids)
        session.record(call, segment, message, digest)
        if status == "aborted":
            call.settle(problem=Problem("upstream", "The call was ended before its answer was complete."))
        else:
            self._settle(call, feed, message, sampled.finish_reason, usage)
            if not call.listeners:
                self.recorder.note(call.id, "undelivered")

    def _settle(
        self, call: Call, feed: TokenFeed, message: Message, finish_reason: str, usage: TokenUsage
    ) -> None:
        reason: FinishReason = (
            "length" if finish_reason == "length" else "tool_calls" if message.tool_calls else "stop"
        )
        call.deltas.append(Finished(reason, usage, feed.stop_sequence))
        call.settle(
            Answer(call.id, call.stamp.model, message, reason, usage, call.stamp.created, feed.stop_sequence)
        )

    async def _fail(self, session: Session, call: Call, error: Exception, intended: "Future[None]") -> None:
        """Settle a failed call and record the failure. If a write failed, the session becomes stale."""
        text = str(error) if isinstance(error, HarnessGymError) else f"{type(error).__name__}: {error}"
        session.tracker.failed(call.id)
        # After a failed write nobody knows what the store has of the call. Only loading the session again
        # brings memory and store together.
        session.stale = session.stale or isinstance(error, StoreError)
        # While the store is away, tell the clients first: recording the failure may wait for a long time.
        if isinstance(error, StoreUnavailable):
            call.settle(problem=Problem("unavailable", text, retry_after_s=1.0))
        try:
            await self.recorder.wait(intended)
            await self.recorder.fail(call.id, text)
        except StoreError as refusal:
            session.stale = True
            # The message is enough.
            log.error("The failure of call %s could not be recorded: %s", call.id, refusal)  # noqa: TRY400
        # If the engine was lost before the first token, nothing was shown: the client may simply retry.
        early = isinstance(error, UpstreamLost) and not call.sampled.ids
        problem = Problem("overloaded" if early else "upstream", text, retry_after_s=1.0 if early else None)
        if not call.settled:
            call.settle(problem=error.problem if isinstance(error, TextRefusal) else problem)
        if not isinstance(error, UpstreamError):
            log.error("Call %s failed: %s", call.id, text)


def _stored(forest: Forest, segment: Segment, written: "Future[None]") -> None:
    if written.exception() is None:
        forest.stored(segment)


def _known_break(broken: Break, rule: SideCallRule | None, fresh: AgentRow | None) -> Break:
    """A break, with its class corrected where a rule gives the call's purpose or a header names its agent."""
    if rule is not None and rule.kind == "compaction":
        return replace(broken, kind="compaction")
    another = fresh is not None and fresh.evidence == "header"
    return replace(broken, kind="sub_agent") if another else broken


def _members(record: Sampling | TokenUsage) -> dict[str, Any]:
    """A record's fields by name, without copying containers as `dataclasses.asdict` would."""
    return {name: getattr(record, name) for name in _MEMBERS[type(record)]}


def _timings(sampled: SampledTokens, started: float) -> dict[str, float]:
    now = time.monotonic()
    first = now if sampled.first_at is None else sampled.first_at
    return {"first_token_s": round(first - started, 6), "total_s": round(now - started, 6)}
