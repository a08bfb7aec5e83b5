"""Rates and shares over a sliding window of calls and rollouts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harnessgym.store.recent import RecentCall, RecentRollout

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

    def add_calls(self, found: Iterable[RecentCall]) -> None:
        """Add new calls, or replace known ones by their later state."""
        self._calls |= {call.id: call for call in found}

    def add_ended(self, found: Iterable[RecentRollout]) -> None:
        """Add ended rollouts. Their open calls are dropped, because no one answers those any more."""
        ended = {rollout.id: rollout for rollout in found}
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
        taken = [(begin, end) for begin, end in spans if end > begin]
        tokens = sum(call.tokens for call in own)
        in_calls = sum(end - begin for begin, end in taken)
        return WorkerUse(union(taken) / self.span_s, in_calls / self.span_s, tokens / self.span_s)

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
