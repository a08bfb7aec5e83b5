"""Gets the answer of a call: from an engine (another one if the first is lost) or from an outside model."""

from contextlib import aclosing
from dataclasses import replace
from typing import cast

from harnessgym.errors import UpstreamLost
from proxies.call import Call
from proxies.feed import TokenFeed
from proxies.served_policies import ServedPolicies
from proxies.session import Session
from proxies.upstream import TextCall, TextUpstream, Upstream
from proxies.work_slots import WorkSlots
from proxies.workers import REPLAY, NoWorker, Worker, WorkerFilter, WorkerTable, is_text

_ATTEMPTS = 6
"""Consecutive workers that one call may lose without receiving a token."""


class Answerer:
    """Samples the answers of calls."""

    def __init__(self, workers: WorkerTable, policies: ServedPolicies, run_id: str, slots: WorkSlots) -> None:
        """`run_id` and the policy version form the salt of the engines' prefix caches; with several policies
        it is the policy's id and the version. So no cache entry is used under another policy or version.
        """
        self._workers = workers
        self._policies = policies
        self._run_id = run_id
        self._slots = slots

    async def answer(self, session: Session, call: Call, feed: TokenFeed) -> None:
        """Sample the answer. When a worker is lost, another one continues from the tokens so far.

        Raises `UpstreamLost` when no worker is left, `UpstreamError` when one refuses or contradicts itself.
        """
        attempts = 0
        while True:
            before = len(call.sampled.ids)
            # A worker may be lost after the last allowed token but before its finish reason.
            if len(call.sampled.ids) >= call.sampling.max_tokens:
                call.sampled.finish_reason = "length"
                return
            wanted = self._worker_filter(session, call)
            call.silence.lost = call.silence.lost or self._workers.lacks(wanted)
            try:
                async with self._workers.taking(wanted) as worker:
                    call.silence.whole = is_text(worker.upstream)
                    if is_text(worker.upstream):
                        await self._complete(
                            session, worker.row.id, cast("TextUpstream", worker.upstream), call, feed
                        )
                    else:
                        await self._sample_at(session, worker, cast("Upstream", worker.upstream), call, feed)
            except UpstreamLost as error:
                # A worker that is drained or updated ends its calls on purpose; that is no outage.
                if not isinstance(error, NoWorker) and worker.row.state not in ("draining", "updating"):
                    call.silence.lost = True
                attempts = attempts + 1 if len(call.sampled.ids) == before else 1
                if isinstance(error, NoWorker) or attempts == _ATTEMPTS:
                    raise
            else:
                return

    async def _sample_at(
        self, session: Session, worker: Worker, upstream: Upstream, call: Call, feed: TokenFeed
    ) -> None:
        row = worker.row
        sampled = call.sampled
        before = len(call.sampled.ids)
        sampled.worker = row.id
        prompt = [*call.prompt.ids, *sampled.ids] if before else call.prompt.ids
        sampling = call.sampling.limited(call.sampling.max_tokens - before)
        # With the same seed the new worker would draw the random numbers of the first tokens again, so that
        # later tokens would be correlated with them.
        if before and sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + before)
        salt = (
            f"{self._run_id}:{row.version}" if call.policy_id is None else f"{call.policy_id}:{row.version}"
        )
        async with aclosing(
            upstream.generate(prompt, sampling, salt=salt, experts_from=session.experts.known(call))
        ) as chunks:
            async for chunk in chunks:
                worker.heard()
                call.silence.end()
                # What the engine sends in the meantime is read as one piece, so a session that has more to
                # say than its share is dealt with in fewer steps.
                async with self._slots.piece(session.row.id):
                    sampled.take(chunk)
                    feed.add(chunk.ids)
                if chunk.finish_reason == "abort":
                    raise UpstreamLost(f"Worker {row.id} aborted the sequence.")
                if chunk.finish_reason is not None:
                    call.interruptible = False
                    sampled.end(chunk, len(prompt), len(sampled.ids) - before)
                    return
        raise UpstreamLost(f"Worker {row.id} ended its answer without a finish reason.")

    async def _complete(
        self, session: Session, worker_id: str, upstream: TextUpstream, call: Call, feed: TokenFeed
    ) -> None:
        """Get the answer of an outside model."""
        call.sampled.worker = worker_id
        prompt = tuple(call.prompt.ids)
        timeout_s = session.options.answer_timeout_s
        language = self._policies.by_id(call.policy_id).language
        asked = TextCall(
            id=call.id,
            session_id=session.row.id,
            ordinal=call.ordinal,
            request=call.request,
            prompt=prompt,
            sampling=call.sampling,
            language=language,
            timeout_s=timeout_s,
            replay=session.options.replay or "",
        )
        answer = await upstream.complete(asked)
        call.interruptible = False
        call.sampled.accept_text(answer, language)
        feed.add(call.sampled.ids)

    def _worker_filter(self, session: Session, call: Call) -> WorkerFilter:
        """The workers that may answer a call. The first policy's pin and oldest version are the session's
        own; those of other policies are in its limits, by policy.
        """
        parent = call.prompt.parent
        limits = session.row.limits
        pin = session.row.version_pin
        least = limits.get("min_version")
        if call.policy_id != self._policies.first.id:
            pin, least = (limits.get(name, {}).get(call.policy_id) for name in ("pins", "min_versions"))
        return WorkerFilter(
            upstream=session.options.upstream if session.options.replay is None else REPLAY,
            prefix_owner=None if parent is None else session.workers.get(parent.segment_id),
            pin=pin,
            min_version=least,
            policy_id=call.policy_id,
        )
