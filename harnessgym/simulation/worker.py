"""One engine worker: it decodes its calls together, each more slowly the more there are.

There is no event per token (processor sharing). All running calls advance by the same number of decoded
tokens, so one running sum gives the progress of each, and the call with the smallest target finishes next.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from harnessgym.simulation.distributions import Floats
from harnessgym.simulation.settings import EnginesSection
from harnessgym.store.workers import WorkerState

if TYPE_CHECKING:
    from harnessgym.simulation.node import Rollout

N = TypeVar("N", float, Floats)
_NEVER = float("inf")
_SLACK_S = 1e-9
"""Rounding error allowed at the end of a call."""


@dataclass(slots=True, eq=False)
class SimulatedCall:
    """One model call of a rollout."""

    rollout: "Rollout"
    wanted: int
    """Tokens it will sample."""
    read: int
    """Prompt tokens that this turn adds."""
    context: int
    """Prompt tokens before those."""
    spans: dict[int, int]
    """The rollout's sampled tokens by version."""
    cached: tuple[int, int] | None
    """Worker and version whose cache holds the context."""
    sampled: int = 0
    at: "SimulatedWorker | None" = None
    """The worker where it runs or waits; None while no worker can take it."""
    start: float = 0.0
    """The worker's sum at which the call's first token is due."""


def decoding_rate(engines: EnginesSection, calls: N) -> N:
    """Tokens/s of a whole worker with n calls: n / (1/alone + (n-1)/most), concave in n."""
    others: N = np.maximum(0.0, calls - 1)
    return calls / (1 / engines.tokens_per_s + others / engines.most_tokens_per_s)


def call_s(engines: EnginesSection, calls: Floats) -> Floats:
    """Seconds per token of each of n calls at a worker, with the wait for a place: n / rate, for n >= 1."""
    return np.maximum(calls, 1) / decoding_rate(engines, np.clip(calls, 1, engines.max_batch))


def call_speeds(engines: EnginesSection) -> tuple[float, ...]:
    """Tokens/s of each call by the number that run together, from 0."""
    return 0.0, *(decoding_rate(engines, calls) / calls for calls in range(1, engines.max_batch + 1))


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """The state and the calls of a worker."""

    number: int
    engines: EnginesSection
    speeds: tuple[float, ...]
    """`call_speeds` of the engines."""
    version: int = 0
    state: WorkerState = "ready"
    life: int = 0
    """Counts deaths and updates. Events scheduled in an earlier life are void."""
    running: list[tuple[float, int, SimulatedCall]] = field(default_factory=list)
    waiting: deque[SimulatedCall] = field(default_factory=deque)
    wake_at: float = _NEVER
    _sum: float = 0.0
    """Tokens by which a call present from the beginning would have advanced."""
    _at: float = 0.0
    _order: int = 0

    @property
    def load(self) -> int:
        """Number of calls in flight."""
        return len(self.running) + len(self.waiting)

    def advance(self, now: float) -> None:
        """Bring the sum up to `now`. Must be called before `running` changes."""
        if self.running:
            self._sum += (now - self._at) * self.speeds[len(self.running)]
        self._at = now

    def start(self, now: float) -> None:
        """Start waiting calls while the batch has room."""
        self.advance(now)
        cost = self.engines.prefill_cost
        while self.waiting and len(self.running) < self.engines.max_batch:
            call = self.waiting.popleft()
            # A cache of other weights is useless: after an update the whole context is prefilled again.
            known = call.cached == (self.number, self.version)
            call.start = self._sum + cost * (call.read if known else call.read + call.context + call.sampled)
            # The counter breaks ties in order of arrival and keeps the heap from comparing calls.
            self._order += 1
            heapq.heappush(self.running, (call.start + call.wanted - call.sampled, self._order, call))

    def due(self, now: float) -> float:
        """When the next call finishes if nothing changes."""
        if not self.running:
            return _NEVER
        self.advance(now)
        return now + max(0.0, self.running[0][0] - self._sum) / self.speeds[len(self.running)]

    def finished(self, now: float) -> list[SimulatedCall]:
        """Remove and return the calls finished by now."""
        self.advance(now)
        done: list[SimulatedCall] = []
        due = self._sum + _SLACK_S * self.engines.tokens_per_s
        while self.running and self.running[0][0] <= due:
            done.append(heapq.heappop(self.running)[2])
        return done

    def take_back(self, now: float) -> list[tuple[SimulatedCall, int]]:
        """Remove all running calls in order of arrival. Returns each with its tokens since its start."""
        self.advance(now)
        calls_with_tokens = [
            (call, self._since_start(call)) for _, _, call in sorted(self.running, key=lambda item: item[1])
        ]
        self.running.clear()
        return calls_with_tokens

    def withdraw(self, call: SimulatedCall, now: float) -> int:
        """Remove one running call. Returns the tokens it has sampled since it was started."""
        self.advance(now)
        self.running = [item for item in self.running if item[2] is not call]
        heapq.heapify(self.running)
        return self._since_start(call)

    def _since_start(self, call: SimulatedCall) -> int:
        return max(0, min(call.wanted - call.sampled, int(self._sum - call.start + _SLACK_S)))
