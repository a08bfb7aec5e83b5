"""Continuous batching on one thread: admit, prefill, decode, sample, deliver.

Promises:
- A request's tokens depend on the weights, its prompt, its seed and its parameters, not on what shares the
  batch (up to rounding).
- Every token is labelled with the version whose weights, over the whole context, gave its logprob: when
  weights change, running sequences either finish first or have their context computed again.
- What one version or salt computed is never read under another.
"""

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from harnessgym.errors import UpstreamError
from trainers.engine.rows import DRAWS, SequenceRows, StepSamples, sample
from trainers.engine.runner import Ints, ModelRunner
from trainers.engine.runners import make_runner
from trainers.engine.sequence import Chunk, EngineOrder, FinishReason, Sequence, TokenScore, promise
from trainers.policy import Policy
from trainers.weights.chain import read_version

log = logging.getLogger(__name__)

FLUSH_S = 0.02
"""Tokens of running sequences are delivered at most this often."""

GATHER_S = 0.0005
"""An idle engine starts when no further order has arrived for this long (or the batch is full)."""

SHARE = 16
"""Shared prompt tokens for which a prompt waits until another one is computed, to copy from it."""

InstallMode = Literal["reprefill", "finish"]
"""How running sequences are handled when weights change."""


@dataclass(slots=True)
class Counters:
    """Counts since the engine started."""

    sampled: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefix_hits: int = 0
    finished: int = 0
    aborted: int = 0
    steps: int = 0
    installs: int = 0


class Engine:
    """Runs a policy's sequences. All methods may be called from any thread; the work is done on the engine's
    own thread.

    Once it is closed or its thread has failed, every sequence has ended with "abort", every future has failed
    with `UpstreamError`, and further orders are refused with `UpstreamError`.
    """

    def __init__(
        self,
        runner: ModelRunner,
        rows: SequenceRows,
        *,
        max_batch: int,
        prefill_tokens: int = 4_096,
        seed: int = 0,
        version: int = 0,
    ) -> None:
        self.runner = runner
        self.policy = runner.policy.eval()
        self.rows = rows
        self.version = version
        self.counters = Counters()
        self.max_batch = max_batch
        self._prefill_tokens = prefill_tokens
        self._seeds = np.random.SeedSequence(seed)
        self._inbox: queue.SimpleQueue[EngineOrder] = queue.SimpleQueue()
        self._ordering = threading.Lock()
        self._waiting: deque[Sequence] = deque()
        self._active: list[Sequence] = []
        self._installs: deque[tuple[InstallMode, EngineOrder]] = deque()
        self._numbers = np.arange(max_batch)
        self._flushed_at = 0.0
        self._closed = False
        self.failure: Exception | None = None
        self._on_failure: Callable[[Exception], object] = lambda _: None
        self._on_delivery: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(
        self,
        on_failure: Callable[[Exception], object] = lambda _: None,
        on_delivery: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the engine's thread. It calls `on_delivery` after each step's chunks and, should it fail,
        `on_failure` last.
        """
        self._on_failure = on_failure
        self._on_delivery = on_delivery
        self._thread.start()

    def close(self) -> None:
        """Abort what is running and stop the thread."""
        self._order(EngineOrder(self._close, lambda: None), refuse=False)
        self._thread.join()

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises `UpstreamError` if the engine has stopped."""
        self._order(EngineOrder(partial(self._waiting.append, sequence), partial(self._abort, sequence)))

    def abort(self, sequence: Sequence) -> None:
        """End a sequence before its next step; its last chunk says "abort". Does nothing to a finished
        one.
        """
        abort = partial(self._abort, sequence)
        self._order(EngineOrder(abort, abort), refuse=False)

    def install(
        self, source: dict[str, Tensor] | Path, version: int, mode: InstallMode = "reprefill"
    ) -> Future[None]:
        """Switch to other weights: tensors by Hugging Face name, or a version directory, which is verified.

        "reprefill": between two steps; running sequences have their context computed again. "finish": running
        sequences end on the old weights while new ones wait. The future raises `PolicyError` if the weights
        do not fit, and then the old ones stay in place; a directory that cannot be verified, or an engine
        that has stopped (`UpstreamError`), raises at once.
        """
        done: Future[None] = Future()
        weights = read_version(source)[1] if isinstance(source, Path) else source
        order = promise(done, partial(self._install, weights, version), self._stopped)
        self._order(EngineOrder(partial(self._installs.append, (mode, order)), order.drop))
        return done

    def check(self) -> Future[None]:
        """One forward pass over one token; the future raises `UpstreamError` unless all logits are finite."""
        done: Future[None] = Future()
        self._order(promise(done, self._check, self._stopped))
        return done

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Sequences and other orders that have not been started."""
        return len(self._waiting) + self._inbox.qsize()

    def _run(self) -> None:
        try:
            while not self._closed:
                self._process_orders()
                if not self._closed:
                    self._step()
                self._on_delivery()
        except Exception as error:
            log.exception("The engine's thread failed; all its sequences are aborted.")
            self.failure = error
            self._close()
            self._on_delivery()
            self._on_failure(error)

    def _order(self, order: EngineOrder, *, refuse: bool = True) -> None:
        """Hand an order to the thread. A stopped engine ignores it, or raises `UpstreamError` if it is to
        `refuse`.
        """
        with self._ordering:
            if not self._closed:
                self._inbox.put(order)
            elif refuse:
                raise self._stopped()

    def _stopped(self) -> UpstreamError:
        how = f"has failed: {self.failure!r}" if self.failure is not None else "has been closed"
        return UpstreamError(f"The engine {how}. Restart it.")

    def _process_orders(self) -> None:
        """Process all orders; wait for one if there is nothing to run."""
        if not (self._active or self._waiting or self._installs):
            self._inbox.get().do()
            self._gather()
        while not self._inbox.empty():
            self._inbox.get().do()

    def _gather(self) -> None:
        """After idleness, wait briefly for further orders, so that calls that arrive together form a
        batch.
        """
        with contextlib.suppress(queue.Empty):
            while len(self._waiting) < self.max_batch and not self._closed:
                self._inbox.get(timeout=GATHER_S).do()

    @torch.inference_mode()
    def _step(self) -> None:
        while self._installs and (self._installs[0][0] == "reprefill" or not self._active):
            self._installs.popleft()[1].do()
        if not self._installs:
            self._admit()
        count = len(self._active)
        missing = self.rows.length[:count] - self.rows.computed[:count]
        pending = np.flatnonzero((missing > 1) | (self.rows.computed[:count] == 0))
        if len(pending):
            self._prefill(pending.tolist())
        elif self._active:
            self._decode()
        if time.monotonic() - self._flushed_at >= FLUSH_S:
            self._flush()

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self.max_batch:
            if not self._waiting[0].finished:
                self._place(self._waiting[0])
            self._waiting.popleft()  # only now: if placing fails, it is aborted with the waiting sequences

    def _place(self, sequence: Sequence) -> None:
        rows = self.rows
        sampling = sequence.sampling
        row = rows.admit(sequence.prompt, sequence.salt)
        rows.limit[row] = sequence.limit
        rows.temperature[row], rows.top_k[row], rows.top_p[row] = (
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
        )
        seed = (
            sampling.seed
            if sampling.seed is not None
            else int(self._seeds.spawn(1)[0].generate_state(1, np.uint64)[0])
        )
        sequence.uniforms = np.random.Generator(np.random.Philox(key=seed % (1 << 128)))
        sequence.row = row
        self._active.append(sequence)
        self.counters.prompt_tokens += len(sequence.prompt)

    def _prefill(self, pending: list[int]) -> None:
        """Compute the missing context of as many rows as fit in a step, and sample their next tokens."""
        index, width = self._prefill_batch(pending)
        start = self.rows.computed[index]
        last = self.rows.length[index] - start - 1
        columns = np.minimum(start[:, None] + np.arange(width), self.rows.cache.length - 1)
        ids = self.rows.tokens[index[:, None], columns]
        scored = [row for row in index.tolist() if self._active[row].needs_scores]
        hidden = self.runner.prefill(index, ids, start, last + 1, whole=bool(scored))
        self.rows.computed[index] = self.rows.length[index]
        for row in scored:
            self._score_prompt(self._active[row], hidden[int(np.flatnonzero(index == row)[0])])
        at_B = np.arange(len(index))
        self._sample(index, hidden[at_B, last] if scored else hidden[:, 0])

    def _prefill_batch(self, pending: list[int]) -> tuple[Ints, int]:
        """Rows to prefill together, and the largest number of tokens that one of them lacks."""
        # A row that shares more with a row of this batch than with any cached row waits for the next step,
        # and then copies the shared prefix instead of computing it.
        rows = self.rows
        batch = list[int]()
        width = 0
        furthest = 0
        for row in pending:
            sequence = self._active[row]
            if rows.computed[row] == 0 and not sequence.needs_scores:
                if batch and rows.shared_with(row, batch) >= rows.reusable(row)[1] + SHARE:
                    continue
                self._reuse(sequence)
            start = int(rows.computed[row])
            wider = max(width, int(rows.length[row]) - start)
            further = max(furthest, start)
            if batch and (
                wider * (len(batch) + 1) > self._prefill_tokens or wider + further > rows.cache.length
            ):
                break
            batch.append(row)
            width = wider
            furthest = further
        return np.array(batch), width

    def _reuse(self, sequence: Sequence) -> None:
        shared = self.rows.reuse(sequence.row)
        if self.rows.length[sequence.row] == len(sequence.prompt):
            sequence.cached_tokens = shared
            self.counters.cached_tokens += shared
            self.counters.prefix_hits += shared > 0

    def _decode(self) -> None:
        count = len(self._active)
        index = self._numbers[:count]
        start = self.rows.computed[:count]
        hidden = self.runner.decode(self.rows.tokens[index, start], start)
        start += 1
        self._sample(index, hidden)

    def _sample(self, index: Ints, hidden_BE: Tensor) -> None:
        """Sample a token for each row of `index`, append it, and end the sequences that are complete."""
        rows = self.rows
        for row in index[rows.drawn[index] == DRAWS].tolist():
            uniforms = self._active[row].uniforms
            assert uniforms is not None
            rows.draws[row] = uniforms.random(DRAWS, dtype=np.float32)
            rows.drawn[row] = 0
        uniform = rows.draws[index, rows.drawn[index]]
        sampled = sample(
            self.policy.logits(hidden_BE),
            rows.temperature[index],
            rows.top_k[index],
            rows.top_p[index],
            uniform,
        )
        tokens = sampled.tokens.cpu().numpy()
        end = rows.length[index]
        rows.tokens[index, end] = tokens
        rows.logprobs[index, end] = sampled.logprobs.cpu().numpy()
        rows.drawn[index] += 1
        rows.length[index] += 1
        self.counters.sampled += len(index)
        self.counters.steps += 1
        self._end_complete(index.tolist(), tokens.tolist(), sampled)

    def _end_complete(self, index: list[int], tokens: list[int], sampled: StepSamples) -> None:
        over = (self.rows.length >= self.rows.limit).tolist()
        ended: list[tuple[int, FinishReason, int | str | None]] = []
        for position, (row, token) in enumerate(zip(index, tokens, strict=True)):
            sequence = self._active[row]
            if sequence.sampling.logprobs:
                sequence.alternatives.append(
                    _likeliest(sampled.probs_BV[position].log(), sequence.sampling.logprobs)
                )
            stop = sequence.matcher.feed(token) if sequence.matcher else None
            if token in sequence.stops:
                ended.append((row, "stop", None if token in sequence.eos else token))
            elif stop is not None:
                ended.append((row, "stop", stop))
            elif over[row]:
                ended.append((row, "length", None))
        # From the last row to the first: finishing a row moves the last active row into its place, which must
        # not be one that is still to be finished.
        for row, reason, stop_reason in sorted(ended, reverse=True, key=lambda end: end[0]):
            self._finish(row, reason, stop_reason)

    def _finish(self, row: int, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        sequence = self._active[row]
        self._deliver(sequence, reason, stop_reason)
        moved = self._active[self.rows.retire(row)]
        self._active[row], moved.row = moved, row
        self._active.pop()
        sequence.row = -1
        sequence.finished = True
        self.counters.finished += reason != "abort"
        self.counters.aborted += reason == "abort"

    def _flush(self) -> None:
        for sequence in self._active:
            if self.rows.length[sequence.row] > sequence.flushed:
                self._deliver(sequence)
        self._flushed_at = time.monotonic()

    def _deliver(
        self, sequence: Sequence, finish: FinishReason | None = None, stop_reason: int | str | None = None
    ) -> None:
        row = sequence.row
        start = sequence.flushed
        end = int(self.rows.length[sequence.row])
        alternatives = sequence.alternatives
        sequence.alternatives = []
        sequence.flushed = end
        sequence.deliver(
            Chunk(
                ids=self.rows.tokens[row, start:end].tolist(),
                logprobs=self.rows.logprobs[row, start:end].tolist(),
                version=self.version,
                alternatives=alternatives,
                prompt_scores=sequence.prompt_scores,
                finish=finish,
                stop_reason=stop_reason,
                cached_tokens=sequence.cached_tokens,
            )
        )

    def _score_prompt(self, sequence: Sequence, hidden_TE: Tensor) -> None:
        """Logprobs of the prompt's tokens after the first, at temperature 1, 256 positions at a time."""
        following = torch.as_tensor(sequence.prompt[1:], dtype=torch.long, device=hidden_TE.device)
        most = sequence.sampling.prompt_logprobs or 0
        scores = list[TokenScore]()
        for start in range(0, len(following), 256):
            ids = following[start : start + 256]
            scores_TV = self.policy.logits(hidden_TE[start : start + len(ids)]).float().log_softmax(-1)
            chosen = scores_TV.gather(1, ids[:, None])
            ranks = ((scores_TV > chosen).sum(-1) + 1).tolist()
            rows = zip(ids.tolist(), chosen[:, 0].tolist(), ranks, scores_TV, strict=True)
            scores += [TokenScore(i, lp, rank, _likeliest(scores_V, most)) for i, lp, rank, scores_V in rows]
        sequence.prompt_scores = scores

    def _install(self, weights: dict[str, Tensor], version: int) -> None:
        # Tokens of the old weights are delivered before the version changes, since a chunk has one version.
        self._flush()
        self.policy.load(weights)
        self.version = version
        self.rows.forget()
        self.counters.installs += 1

    @torch.no_grad()
    def _check(self) -> None:
        hidden_ME, _ = self.policy.hidden([np.zeros(2, np.int32)], [np.array([0, 1], np.int32)])
        if not bool(self.policy.logits(hidden_ME).isfinite().all()):
            raise UpstreamError(
                f"Policy version {self.version} gives logits that are not finite; do not serve it."
            )

    def _abort(self, sequence: Sequence) -> None:
        if sequence.row >= 0:
            self._finish(sequence.row, "abort")
        elif not sequence.finished:
            sequence.finished = True
            self.counters.aborted += 1
            sequence.deliver(Chunk([], [], self.version, finish="abort"))

    def _close(self) -> None:
        """Refuse further orders, and drop all pending ones. An error in dropping one does not affect the
        others.
        """
        with self._ordering:
            self._closed = True
        drops = [order.drop for _, order in self._installs]
        drops += [partial(self._abort, sequence) for sequence in (*self._active, *self._waiting)]
        while not self._inbox.empty():
            drops.append(self._inbox.get().drop)
        for drop in drops:
            try:
                drop()
            except Exception:
                log.exception("A caller could not be notified that the engine has stopped.")


def build_engine(
    policy: Policy,
    *,
    max_batch: int = 32,
    cached_sequences: int = 32,
    max_length: int | None = None,
    prefill_tokens: int = 4_096,
    seed: int = 0,
    version: int = 0,
) -> Engine:
    """An engine, not yet started, with cache rows for `max_batch` running and `cached_sequences` finished
    sequences.
    """
    count = max_batch + max(1, cached_sequences)
    runner = make_runner(policy, count, max_length)
    rows = SequenceRows(runner.cache, count)
    return Engine(
        runner, rows, max_batch=max_batch, prefill_tokens=prefill_tokens, seed=seed, version=version
    )


def _likeliest(scores_V: Tensor, count: int) -> dict[int, float]:
    """The `count` likeliest tokens with their logprobs, likeliest first."""
    top = scores_V.topk(count)
    return dict(zip(top.indices.tolist(), top.values.tolist(), strict=True))
