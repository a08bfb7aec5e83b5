"""The figures of a simulated run. All of them are simulated."""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import comb
from typing import TYPE_CHECKING, Any

from harnessgym.simulation.bound import Bound, bound_of, rollouts_needed

if TYPE_CHECKING:
    from harnessgym.simulation.simulation import Simulation

LEAST_SEEDS = 6
"""With fewer values no two order statistics enclose the median with 95 % probability."""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """Figures of the time after the warm-up, unless stated otherwise."""

    name: str
    seed: int
    virtual_s: float
    """Virtual seconds from the end of the warm-up to the last step."""
    rollouts_per_s: float
    """Rollouts trained per virtual second. A replayed rollout counts each time."""
    tokens_per_s: float
    """Tokens trained per virtual second, counted likewise."""
    bound: Bound
    idle: dict[str, float]
    """Share of idle time by kind: engines without a call, empty environments, graders, the trainer."""
    staleness: dict[int, int]
    """Trained tokens by staleness."""
    versions: dict[int, int]
    """Trained rollouts by the number of versions that sampled them."""
    queues: dict[str, float]
    """Mean length of each queue."""
    longest: dict[str, int]
    """Longest length of each queue."""
    out_of_service: float
    """Share of the workers' time in which they took no calls because of updates."""
    serving_nobody: float
    """Share of the workers' time in an update during which none of their calls advanced."""
    length_bias: float
    """Mean tokens of trained rollouts over the mean of all drawn ones; 1 means no bias."""
    counts: dict[str, int]
    """Events of the whole run by name."""
    events: int
    """Events of the virtual clock in the whole run."""

    @property
    def of_bound(self) -> float:
        """Throughput as a share of the bound."""
        return self.rollouts_per_s / self.bound.rollouts_per_s

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of trained tokens."""
        total = sum(self.staleness.values())
        return sum(stale * tokens for stale, tokens in self.staleness.items()) / total if total else 0.0

    @property
    def off_policy(self) -> float:
        """Share of trained tokens sampled by an older version than the one being trained."""
        total = sum(self.staleness.values())
        return 1 - self.staleness.get(0, 0) / total if total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The figures as JSON values, marked as simulated."""
        extra = {
            "of_bound": self.of_bound,
            "limit": self.bound.limit,
            "bound_rollouts_per_s": self.bound.rollouts_per_s,
        }
        rates = {"mean_staleness": self.mean_staleness, "off_policy": self.off_policy}
        largest = {"max_staleness": max(self.staleness, default=0)}
        return {
            "simulated": True,
            **asdict(self),
            "bound": _finite(asdict(self.bound)),
            **extra,
            **rates,
            **largest,
        }


def outcome_of(simulation: "Simulation") -> SimulationOutcome:
    """The figures of a finished run."""
    config = simulation.config
    measures = simulation.measures
    clock = simulation.clock
    seconds = clock.now - measures.since
    workers = config.engines.workers
    work = config.work
    places = {"engines": workers, "environments": work.environments, "graders": work.graders, "trainer": 1}
    updates = [measures.level(f"workers {state}").mean() for state in ("draining", "updating")]
    queues = ("rollouts queued", "calls waiting", "rollouts ungraded", "groups complete")
    return SimulationOutcome(
        name=config.name,
        seed=config.seed,
        virtual_s=seconds,
        rollouts_per_s=(measures.counted("rollouts trained") + measures.counted("rollouts replayed"))
        / seconds,
        tokens_per_s=(measures.counted("tokens trained") + measures.counted("tokens replayed")) / seconds,
        bound=bound_of(config, simulation.draws.table(rollouts_needed(config))),
        idle={kind: 1 - measures.level(kind).mean() / count for kind, count in places.items()},
        staleness=dict(sorted(measures.staleness.items())),
        versions=dict(sorted(measures.versions.items())),
        queues={name: measures.level(name).mean() for name in queues},
        longest={name: measures.level(name).highest for name in queues},
        out_of_service=sum(updates) / workers,
        serving_nobody=updates[1] / workers,
        length_bias=_length_bias(simulation),
        counts=dict(sorted(measures.counts.items())),
        events=clock.events,
    )


def _length_bias(simulation: "Simulation") -> float:
    """Mean length of all trained rollouts over that of all submitted ones, each task counted once."""
    trained: Counter[str] = Counter()
    for groups in simulation.learner.ledger.values():
        for rollout in (member for group in groups for member in group.members):
            trained.update(tokens=sum(rollout.work.tokens), rollouts=1)
    drawn = simulation.planner.drawn_tokens
    return (trained["tokens"] / trained["rollouts"]) / (drawn[0] / drawn[1])


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure's median and interval over seeds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Median and its 95 % interval.

        The interval runs between order statistics that enclose the median with at least that probability for
        any distribution (binomial with p = 1/2). With fewer than six values it is their range.
        """
        ordered = sorted(values)
        n = len(values)
        rank = 0
        while 2 * sum(comb(n, k) for k in range(rank + 2)) / 2**n <= 0.05:
            rank += 1
        return cls(statistics.median(ordered), ordered[rank], ordered[n - 1 - rank])

    def shown(self, digits: int = 2) -> str:
        """Text for tables."""
        if self.low == self.high:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} [{self.low:,.{digits}f}, {self.high:,.{digits}f}]"


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: None if value == float("inf") else value for name, value in values.items()}
