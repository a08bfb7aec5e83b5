"""Simulated outcomes as tables, and as figures with intervals."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from harnessgym.simulation.outcome import LEAST_SEEDS, SimulationOutcome, Spread

Reading = Callable[[SimulationOutcome], float]

_KINDS = ("engines", "environments", "graders", "trainer")
_READINGS: dict[str, Reading] = {
    "rollouts_per_s": lambda outcome: outcome.rollouts_per_s,
    "tokens_per_s": lambda outcome: outcome.tokens_per_s,
    "bound_rollouts_per_s": lambda outcome: outcome.bound.rollouts_per_s,
    "of_bound": lambda outcome: outcome.of_bound,
    "mean_staleness": lambda outcome: outcome.mean_staleness,
    "max_staleness": lambda outcome: float(max(outcome.staleness, default=0)),
    "off_policy": lambda outcome: outcome.off_policy,
    "versions_per_rollout": lambda outcome: _mean(outcome.versions),
    "length_bias": lambda outcome: outcome.length_bias,
    "out_of_service": lambda outcome: outcome.out_of_service,
    "serving_nobody": lambda outcome: outcome.serving_nobody,
}
_COUNTS = ("groups dropped", "groups requeued", "calls interrupted", "tokens dropped", "tokens failed")
_QUEUES = ("rollouts queued", "calls waiting", "rollouts ungraded", "groups complete")
_HISTOGRAM = (0, 1, 2, 3, 4, 5, 6, 7, 8)


def figures(outcomes: Sequence[SimulationOutcome]) -> dict[str, Any]:
    """All figures of a variant with their intervals over seeds."""
    readings = _READINGS | {
        f"idle_{kind}": (lambda outcome, kind=kind: outcome.idle[kind]) for kind in _KINDS
    }
    readings |= {
        f"queue_{name.replace(' ', '_')}": (lambda outcome, name=name: outcome.queues[name])
        for name in _QUEUES
    }
    readings |= {
        name.replace(" ", "_"): (lambda outcome, name=name: float(outcome.counts.get(name, 0)))
        for name in _COUNTS
    }
    out: dict[str, Any] = {
        name: asdict(Spread.of([read(outcome) for outcome in outcomes])) for name, read in readings.items()
    }
    limits = [outcome.bound.limit for outcome in outcomes]
    return {
        "seeds": len(outcomes),
        **out,
        "limit": max(limits, key=limits.count),
        "staleness": _shares(outcomes),
    }


def most_stale(shares: Mapping[str, float]) -> int:
    """The largest staleness of any token of any seed. A median over seeds would hide one bad seed."""
    return max(map(int, shares), default=0)


def tables(arms: Mapping[str, Sequence[SimulationOutcome]]) -> list[Table]:
    """Four tables: throughput and idle shares, staleness and updates, the staleness histogram, queues."""
    seeds = max(len(outcomes) for outcomes in arms.values())
    interval = "95 % interval" if seeds >= LEAST_SEEDS else "range"
    over = f"simulated, {seeds} seeds: median [{interval}]" if seeds > 1 else "simulated, 1 seed"
    return [_throughput(arms, over), _staleness(arms, over), _histogram(arms), _queues(arms, over)]


def _throughput(arms: Mapping[str, Sequence[SimulationOutcome]], over: str) -> Table:
    idle = [f"{kind} idle" for kind in _KINDS]
    table = Table(
        "arm", "rollouts/s", "trained tokens/s", "of the bound", "limit", *idle, title=f"Throughput ({over})"
    )
    for name, outcomes in arms.items():
        limits = [outcome.bound.limit for outcome in outcomes]
        table.add_row(
            name,
            _shown(outcomes, "rollouts_per_s", 2),
            _shown(outcomes, "tokens_per_s", 0),
            _shown(outcomes, "of_bound", 3),
            max(limits, key=limits.count),
            *(Spread.of([outcome.idle[kind] for outcome in outcomes]).shown(2) for kind in _KINDS),
        )
    return table


def _staleness(arms: Mapping[str, Sequence[SimulationOutcome]], over: str) -> Table:
    columns = (
        "arm",
        "staleness",
        "at most",
        "off-policy",
        "versions a rollout",
        "length bias",
        "out of service",
    )
    table = Table(*columns, "dropped", "requeued", "tokens lost", title=f"Staleness and updates ({over})")
    for name, outcomes in arms.items():
        lost = [
            float(each.counts.get("tokens dropped", 0) + each.counts.get("tokens failed", 0))
            for each in outcomes
        ]
        table.add_row(
            name,
            _shown(outcomes, "mean_staleness", 2),
            str(most_stale(_shares(outcomes))),
            _shown(outcomes, "off_policy", 2),
            _shown(outcomes, "versions_per_rollout", 2),
            _shown(outcomes, "length_bias", 3),
            _shown(outcomes, "out_of_service", 3),
            *(
                Spread.of([float(each.counts.get(f"groups {what}", 0)) for each in outcomes]).shown(0)
                for what in ("dropped", "requeued")
            ),
            Spread.of(lost).shown(0),
        )
    return table


def _histogram(arms: Mapping[str, Sequence[SimulationOutcome]]) -> Table:
    columns = [str(stale) for stale in _HISTOGRAM[:-1]] + [f"{_HISTOGRAM[-1]}+"]
    table = Table("arm", *columns, title="Share of trained tokens by staleness (simulated)")
    for name, outcomes in arms.items():
        shares = _shares(outcomes)
        row = [shares.get(str(stale), 0.0) for stale in _HISTOGRAM[:-1]]
        table.add_row(
            name,
            *(
                f"{share:.2f}" if share else ""
                for share in [*row, 1 - sum(row) if 1 - sum(row) > 1e-9 else 0.0]
            ),
        )
    return table


def _queues(arms: Mapping[str, Sequence[SimulationOutcome]], over: str) -> Table:
    table = Table("arm", *_QUEUES, title=f"Mean queue lengths ({over})")
    for name, outcomes in arms.items():
        table.add_row(
            name, *(Spread.of([outcome.queues[queue] for outcome in outcomes]).shown(0) for queue in _QUEUES)
        )
    return table


def _shown(outcomes: Sequence[SimulationOutcome], name: str, digits: int) -> str:
    return Spread.of([_READINGS[name](outcome) for outcome in outcomes]).shown(digits)


def _shares(outcomes: Sequence[SimulationOutcome]) -> dict[str, float]:
    """Share of trained tokens by staleness, over all seeds."""
    total: dict[int, int] = {}
    for outcome in outcomes:
        for stale, tokens in outcome.staleness.items():
            total[stale] = total.get(stale, 0) + tokens
    tokens = sum(total.values())
    return {str(stale): total[stale] / tokens for stale in sorted(total)}


def _mean(counts: Mapping[int, int]) -> float:
    total = sum(counts.values())
    return sum(value * count for value, count in counts.items()) / total if total else 0.0
