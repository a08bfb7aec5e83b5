"""Rates and shares over the last while, from calls and rollouts that came one by one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harnessgym.store.recent import RecentCall, RecentRollout

STAGES = ("prepare", "run", "reconstruct", "evaluate")
"""In the order that rollouts go through them."""


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """What one engine worker did in a window."""

    busy: float
    """Share of the time in which it had at least one call, 0 to 1."""
    calls: float
    """Calls it had at one time, on average."""
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class StageUse:
    """What one pipeline stage did in a window, by Little's law: rollouts per second times seconds each."""

    running: float
    """Rollouts in it at one time, on average."""
    waiting: float
    """Rollouts in its queue at one time, on average."""
    mean_s: float
    """Seconds in it per rollout."""


@dataclass
class Window:
    """What happened in the last `length_s` seconds before `now`. Times are Unix seconds."""

    length_s: float
    _since: float = 0.0
    _now: float = 0.0
    _calls: dict[str, RecentCall] = field(default_factory=dict)
    _ended: dict[str, RecentRollout] = field(default_factory=dict)

    def move(self, now: float, since: float) -> None:
        """Let it end at `now`; what was before it is forgotten. `since`: from when on anything is known at
        all.
        """
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
        """Calls that began, or what became of them."""
        self._calls |= {call.id: call for call in found}

    def add_ended(self, found: Iterable[RecentRollout]) -> None:
        """Rollouts that have ended. What they still have open is nobody's: whoever answered it is gone."""
        ended = {rollout.id: rollout for rollout in found}
        self._ended |= ended
        self._calls = {
            key: call for key, call in self._calls.items() if not (call.open and call.rollout_id in ended)
        }

    @property
    def span_s(self) -> float:
        """Seconds that it covers."""
        return max(self._now - self._since, 1e-9)

    @property
    def open_calls(self) -> list[str]:
        """Ids of the calls that are still being answered."""
        return [call.id for call in self._calls.values() if call.open]

    @property
    def tokens_per_s(self) -> float:
        """Sampled tokens of calls that were finished in it."""
        return sum(call.tokens for call in self._calls.values()) / self.span_s

    @property
    def rollouts_per_s(self) -> float:
        """Rollouts that were judged in it."""
        return sum(rollout.status == "finished" for rollout in self._ended.values()) / self.span_s

    @property
    def failures(self) -> Mapping[str, int]:
        """Attempts that infrastructure errors ended in it, by cause."""
        out: dict[str, int] = {}
        for rollout in self._ended.values():
            if rollout.status == "failed":
                out[rollout.cause or "unknown"] = out.get(rollout.cause or "unknown", 0) + 1
        return out

    def worker(self, worker_id: str) -> WorkerUse:
        """What one worker did, by the calls it has finished."""
        own = [call for call in self._calls.values() if call.worker == worker_id and not call.open]
        spans = [
            (max(call.created_at, self._since), min(call.created_at + call.seconds, self._now))
            for call in own
        ]
        taken = [(begin, end) for begin, end in spans if end > begin]
        tokens = sum(call.tokens for call in own)
        in_calls = sum(end - begin for begin, end in taken)
        return WorkerUse(union(taken) / self.span_s, in_calls / self.span_s, tokens / self.span_s)

    def stages(self) -> dict[str, StageUse]:
        """What each stage did, by the rollouts that ended in it."""
        out = {}
        for name in STAGES:
            inside = [each.latencies[name] for each in self._ended.values() if name in each.latencies]
            queued = [each.latencies.get(f"wait.{name}", 0.0) for each in self._ended.values()]
            mean = sum(inside) / len(inside) if inside else 0.0
            out[name] = StageUse(sum(inside) / self.span_s, sum(queued) / self.span_s, mean)
        return out


def union(spans: Iterable[tuple[float, float]]) -> float:
    """The length of what intervals cover together."""
    covered = 0.0
    reached = float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered
