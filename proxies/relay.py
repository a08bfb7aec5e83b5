"""Turns a request into calls: continue the session, write the intent, and have the call run.

A client may leave and come back without affecting its call; a call without any listener ends after a grace
time.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from harnessgym.harness import SideCallRule
from harnessgym.message import context_digest
from harnessgym.store.agents import AgentRow
from harnessgym.store.calls import CallIntent, RecordedCall, Segment
from harnessgym.store.tables import new_id
from harnessgym.tokens import hash_ids
from harnessgym.traces.forest import Forest
from proxies.answerer import Answerer
from proxies.call import Call
from proxies.call_runner import CallRunner, members_of
from proxies.constraints import constrained, refuse_images, refuse_tools
from proxies.continuation import Break, Prompt, continue_from
from proxies.conversations import PolicyContext
from proxies.dialect import (
    ModelRequest,
    Problem,
    RequestProblem,
    Stamp,
    TokenUsage,
)
from proxies.fairness import FairThreads
from proxies.raw_prompt import raw_chain
from proxies.recorder import Recorder
from proxies.renderers.long_texts import KnownTokens, LongText, TooManyTokens
from proxies.served_policies import ServedPolicies, ServedPolicy
from proxies.session import Session
from proxies.side_calls import classify
from proxies.work_slots import WorkSlots
from proxies.workers import WorkerTable

T = TypeVar("T")


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
    """Starts the calls of all sessions."""

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
        answerer = Answerer(workers, policies, limits.run_id, self.slots)
        self.runner = CallRunner(recorder, policies, answerer, self.slots)

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
        request = self._constrained(session, incoming.request)
        if request is not incoming.request:
            siblings = [replace(sibling, request=request) for sibling in siblings]
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
        if sampled and self.runner.in_flight + sampled > self.limits.max_in_flight:
            running = self.runner.in_flight
            most = self.limits.max_in_flight
            detail = f"The proxy has {running} calls in flight, its limit is {most}."
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
        speaks = self.workers.speaks(session.options.upstream)
        if request.tools and request.tool_choice != "none" and not speaks:
            refuse_tools(policy.language.no_tools)
        if not policy.language.sees_images and not speaks:
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
        # A prompt that contains an answer proves that the harness received it. Noted before the intent, whose
        # transaction it shares.
        if parent is not None and parent.call_id not in session.acknowledged:
            session.acknowledged.add(parent.call_id)
            self.recorder.note(parent.call_id, "acknowledged")
        # The intent is queued before the task starts, so the call's outcome is behind it in the store's
        # queue.
        intended = self.recorder.intend(intent, segment if new else None, incoming.body, fresh, rows)
        if new:
            intended.add_done_callback(partial(_stored, policy_context.forest, segment))
        session.remember(call, chain)
        self.runner.run(session, call, intended)
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
        self.runner.run(session, call, intended)
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
        feed = self.runner.feed(call)
        feed.add(completion.ids)
        call.prompt_len = stored.prompt_len
        message = feed.finish()
        usage = TokenUsage(stored.prompt_len, len(completion.ids), reasoning_tokens=feed.reasoning_tokens)
        self.runner.settle(call, feed, message, stored.finish_reason or "stop", usage)
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
        prompt_hash = hash_ids(prompt.ids)
        seed = session.seed(segment.id, prompt_hash)
        stop_token_ids = tuple(dict.fromkeys((*sampling.stop_token_ids, *policy.language.stop_token_ids)))
        return Call(
            id=call_id,
            ordinal=ordinal,
            digest=incoming.digest,
            call_prefix=incoming.call_prefix,
            request=request,
            prompt=prompt,
            prompt_len=len(prompt.ids),
            prompt_hash=prompt_hash,
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
            prompt_hash=call.prompt_hash,
            prompt_segment=call.prompt_segment,
            upstream="",
            sampling_asked=dict(call.request.asked),
            sampling_applied=members_of(call.sampling),
            parent_call_id=None if parent is None else parent.call_id,
            parent_evidence="none" if parent is None else "token_prefix",
            break_class=None if broken is None else broken.kind,
            break_detail=None if broken is None else broken.detail,
            policy_id=call.policy_id,
        )


def _stored(forest: Forest, segment: Segment, written: "Future[None]") -> None:
    if written.exception() is None:
        forest.stored(segment)


def _known_break(broken: Break, rule: SideCallRule | None, fresh: AgentRow | None) -> Break:
    """A break, with its class corrected where a rule gives the call's purpose or a header names its agent."""
    if rule is not None and rule.kind == "compaction":
        return replace(broken, kind="compaction")
    another = fresh is not None and fresh.evidence == "header"
    return replace(broken, kind="sub_agent") if another else broken
