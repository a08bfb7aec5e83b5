"""Runs calls whose intent is queued: sample, commit, settle.

Each call is a task of its own, to which clients listen. It is settled and recorded in every case, whether or
not a client is left.
"""

import asyncio
import logging
import time
from array import array
from concurrent.futures import Future
from dataclasses import fields
from typing import Any

from harnessgym.errors import HarnessGymError, StoreError, StoreUnavailable, UpstreamError, UpstreamLost
from harnessgym.message import Message, Sampling
from harnessgym.store.bodies import split_body
from harnessgym.store.calls import CallOutcome, CallStatus, Segment
from harnessgym.store.tables import new_id
from harnessgym.tokens import TokenArray, spans_of
from proxies.answerer import Answerer
from proxies.call import Call, SampledTokens
from proxies.dialect import Answer, Finished, FinishReason, Problem, TokenUsage
from proxies.feed import TokenFeed
from proxies.parsers.raw import RawParser
from proxies.recorder import Recorder
from proxies.served_policies import ServedPolicies
from proxies.session import Session, answer_digest
from proxies.upstream import TextRefusal
from proxies.work_slots import WorkSlots

log = logging.getLogger(__name__)
_MEMBERS = {kind: tuple(field.name for field in fields(kind)) for kind in (Sampling, TokenUsage)}


class CallRunner:
    """Runs the calls of all sessions, and counts them."""

    def __init__(
        self, recorder: Recorder, policies: ServedPolicies, answerer: Answerer, slots: WorkSlots
    ) -> None:
        self._recorder = recorder
        self._policies = policies
        self._answerer = answerer
        self._slots = slots
        self.in_flight = 0
        self.started = 0
        self.tokens = 0
        """Tokens sampled and committed."""

    def feed(self, call: Call) -> TokenFeed:
        """What reads a call's tokens in its policy's language."""
        language = self._policies.by_id(call.policy_id).language
        if call.request.prompt is not None:
            return TokenFeed(
                call, RawParser(language.renderer.written, stop_token_ids=language.stop_token_ids)
            )
        offered = () if call.request.tool_choice == "none" else call.request.tools
        prefix = f"{call.call_prefix}{call.id}_"
        return TokenFeed(call, language.parser(call_prefix=prefix, tools=bool(offered), offered=offered))

    def run(self, session: Session, call: Call, intended: "Future[None]") -> None:
        """Start a call whose intent is queued."""
        self.in_flight += 1
        self.started += 1
        self._slots.call_begun(session.row.id, intended)
        call.task = asyncio.create_task(self._drive(session, call, intended))

    async def _drive(self, session: Session, call: Call, intended: "Future[None]") -> None:
        """Run a call to its end: sampling, then committed, aborted or failed. It is settled and recorded in
        every case.
        """
        started = time.monotonic()
        feed = self.feed(call)
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
            async with self._slots.piece(session.row.id):
                await self._commit(session, call, feed, status, started, intended)
        except Exception as error:
            if not isinstance(error, HarnessGymError):
                log.exception("Call %s failed inside the proxy.", call.id)
            feed.close()
            await self._fail(session, call, error, intended)
        finally:
            self.in_flight -= 1
            self._slots.call_ended(session.row.id)
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
        added = session.experts.added(call)
        # In a thread, since the experts of a long prompt are megabytes.
        experts = None if added is None else await asyncio.to_thread(added.packed)
        outcome = CallOutcome(
            call_id=call.id,
            segment=segment,
            spans=spans_of(sampled.versions),
            answer_digest=digest,
            finish_reason=sampled.finish_reason,
            stop_token=sampled.stop_token,
            upstream=sampled.worker,
            usage=members_of(usage) | ({"unparsed": feed.unparsed} if feed.unparsed else {}),
            timings=_timings(sampled, started) | call.silence.timings(),
            status=status,
            body=None if sampled.body is None else split_body(sampled.body),
            routed_experts=experts,
        )
        # Commit first, then change the session, then settle. A client can act on an answer only once it is
        # settled, so nothing it does can refer to a call that a crash would lose.
        await self._recorder.finish(outcome, session.decided(call, status, message, digest), intended)
        self.tokens += len(sampled.ids)
        session.record(call, segment, message, digest)
        if status == "aborted":
            call.settle(problem=Problem("upstream", "The call was ended before its answer was complete."))
        else:
            self.settle(call, feed, message, sampled.finish_reason, usage)
            if not call.listeners:
                self._recorder.note(call.id, "undelivered")

    def settle(
        self, call: Call, feed: TokenFeed, message: Message, finish_reason: str, usage: TokenUsage
    ) -> None:
        """Give a call's clients its answer."""
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
            await self._recorder.wait(intended)
            await self._recorder.fail(call.id, text)
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


def members_of(record: Sampling | TokenUsage) -> dict[str, Any]:
    """A record's fields by name, without copying containers as `dataclasses.asdict` would."""
    return {name: getattr(record, name) for name in _MEMBERS[type(record)]}


def _timings(sampled: SampledTokens, started: float) -> dict[str, float]:
    now = time.monotonic()
    first = now if sampled.first_at is None else sampled.first_at
    return {"first_token_s": round(first - started, 6), "total_s": round(now - started, 6)}
