"""The figures of a run's progress: rates and shares over a sliding window of calls and rollouts, trained
tokens by staleness, and the processor time of each process.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from harnessgym.process import ProcessId
from harnessgym.store.recent import RecentCall, RecentRollout, TrainedTokens

STAGES = ("prepare", "run", "reconstruct", "evaluate")
"""Stages in the order rollouts pass them."""


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """One engine worker's use in a window."""

    busy: float
    """Share of the time with at least one call, 0 to 1."""
    calls: float
    """Mean number of concurrent calls."""
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class StageUse:
    """One pipeline stage's use in a window, by Little's law: rollouts per second times seconds each."""

    running: float
    """Mean number of rollouts in the stage."""
    waiting: float
    """Mean number of rollouts in its queue."""
    mean_s: float
    """Mean seconds per rollout in the stage."""


@dataclass
class Window:
    """The last `length_s` seconds before `now`. Times are Unix seconds."""

    length_s: float
    _since: float = 0.0
    _now: float = 0.0
    _calls: dict[str, RecentCall] = field(default_factory=dict)
    _ended: dict[str, RecentRollout] = field(default_factory=dict)

    def move(self, now: float, since: float) -> None:
        """Move the window's end to `now` and forget what is before it. Nothing is known before `since`."""
        self._now = now
        self._since = max(since, now - self.length_s)
        self._calls = {
            key: call
            for key, call in self._calls.items()
            if call.open or call.created_at + call.seconds >= self._since
        }
        self._ended = {
            key: rollout for key, rollout in self._ended.items() if (rollout.ended_at or 0.0) >= self._since
        }

    def add_calls(self, calls: Iterable[RecentCall]) -> None:
        """Add new calls, or replace known ones by their later state."""
        self._calls |= {call.id: call for call in calls}

    def add_ended(self, rollouts: Iterable[RecentRollout]) -> None:
        """Add ended rollouts. Their open calls are dropped, because no one answers those any more."""
        ended = {rollout.id: rollout for rollout in rollouts}
        self._ended |= ended
        self._calls = {
            key: call for key, call in self._calls.items() if not (call.open and call.rollout_id in ended)
        }

    @property
    def span_s(self) -> float:
        """Seconds that the window covers."""
        return max(self._now - self._since, 1e-9)

    @property
    def open_calls(self) -> list[str]:
        """Ids of the open calls."""
        return [call.id for call in self._calls.values() if call.open]

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of calls that finished in the window."""
        return sum(call.tokens for call in self._calls.values()) / self.span_s

    @property
    def rollouts_per_s(self) -> float:
        """Graded rollouts per second."""
        return sum(rollout.status == "finished" for rollout in self._ended.values()) / self.span_s

    @property
    def failures(self) -> Mapping[str, int]:
        """Attempts that failed in the window, by cause."""
        out: dict[str, int] = {}
        for rollout in self._ended.values():
            if rollout.status == "failed":
                out[rollout.cause or "unknown"] = out.get(rollout.cause or "unknown", 0) + 1
        return out

    def worker(self, worker_id: str) -> WorkerUse:
        """One worker's use, from its finished calls."""
        own = [call for call in self._calls.values() if call.worker == worker_id and not call.open]
        # Only the part of each call inside the window counts.
        spans = [
            (max(call.created_at, self._since), min(call.created_at + call.seconds, self._now))
            for call in own
        ]
        nonempty_spans = [(begin, end) for begin, end in spans if end > begin]
        tokens = sum(call.tokens for call in own)
        in_calls = sum(end - begin for begin, end in nonempty_spans)
        return WorkerUse(union(nonempty_spans) / self.span_s, in_calls / self.span_s, tokens / self.span_s)

    def stages(self) -> dict[str, StageUse]:
        """Each stage's use, from the rollouts that ended in the window."""
        out = {}
        for name in STAGES:
            inside = [each.latencies[name] for each in self._ended.values() if name in each.latencies]
            queued = [each.latencies.get(f"wait.{name}", 0.0) for each in self._ended.values()]
            mean = sum(inside) / len(inside) if inside else 0.0
            out[name] = StageUse(sum(inside) / self.span_s, sum(queued) / self.span_s, mean)
        return out


def union(spans: Iterable[tuple[float, float]]) -> float:
    """Total length that intervals cover, with overlaps counted once."""
    covered = 0.0
    reached = float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


@dataclass
class _Step:
    version: int
    last_id: str
    tokens: Counter[int] = field(default_factory=Counter)


@dataclass
class StalenessCounts:
    """Trained tokens of the surviving steps, by the staleness of their rollout's oldest token.

    A trainer that resumes from an earlier version abandons the steps after it. They are dropped here when the
    first of them is done again.
    """

    last_id: str = ""
    """Id of the newest entry."""
    _steps: dict[int, _Step] = field(default_factory=dict)

    def add(self, entries: Iterable[TrainedTokens]) -> None:
        """Add entries of the ledger, in order of their ids."""
        for entry in entries:
            step = self._steps.get(entry.step)
            if step is None or step.version != entry.version:
                # A new version of a known step means that the trainer resumed earlier: later steps are void.
                self._steps = {number: kept for number, kept in self._steps.items() if number < entry.step}
                step = self._steps[entry.step] = _Step(entry.version, entry.id)
            step.tokens[entry.max_staleness] += entry.tokens
            self.last_id = step.last_id = entry.id

    def forget_before(self, row_id: str) -> None:
        """Drop steps whose entries all have ids below `row_id`."""
        self._steps = {number: step for number, step in self._steps.items() if step.last_id >= row_id}

    @property
    def all(self) -> Counter[int]:
        """Tokens by staleness over all steps."""
        return sum((step.tokens for step in self._steps.values()), Counter())

    @property
    def newest(self) -> Counter[int]:
        """Tokens by staleness in the newest step."""
        return Counter(self._steps[max(self._steps)].tokens) if self._steps else Counter()


@dataclass
class Processors:
    """CPU use of the processes that a run's supervisor recorded."""

    path: Path
    """The supervisor's file: name to pid and start time."""
    _last: dict[ProcessId, tuple[float, float]] = field(default_factory=dict)
    """Monotonic time and CPU seconds at the last look."""

    def look(self) -> dict[str, float | None]:
        """Cores that each live process kept busy since the last look; None at its first look."""
        shares: dict[str, float | None] = {}
        seen: dict[ProcessId, tuple[float, float]] = {}
        for name, process in self._recorded().items():
            if (used := _seconds(process)) is None:
                continue
            now = time.monotonic()
            seen[process] = (now, used)
            before = self._last.get(process)
            # Keyed by pid and start time, so a restarted process does not inherit its predecessor's seconds.
            shares[name] = None if before is None else (used - before[1]) / max(now - before[0], 1e-9)
        self._last = seen
        return shares

    def _recorded(self) -> dict[str, ProcessId]:
        try:
            return {name: ProcessId(*entry) for name, entry in json.loads(self.path.read_text()).items()}
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            return {}


def _seconds(process: ProcessId) -> float | None:
    """CPU seconds of a process without its children; None if it has ended."""
    if not process.alive():
        return None
    try:
        times = psutil.Process(process.pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)
