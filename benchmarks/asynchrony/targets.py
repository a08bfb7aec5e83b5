"""What the benchmark is to reach."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from harnessgym.simulation.report import most_stale

_NEAR, _OVER = 0.95, 1.03
"""How near a bound is to be reached, and by how much what was sampled before the window that counts may
exceed it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bound on a figure, and what came of it."""

    what: str
    wanted: float
    figure: float
    at_least: bool = False
    always: bool = False
    """Whether it must hold in a quick run too."""

    @property
    def met(self) -> bool:
        """Whether it is good enough."""
        return self.figure >= self.wanted if self.at_least else self.figure <= self.wanted

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "met": self.met}


def judge(parts: dict[str, Any]) -> list[Verdict]:
    """One verdict per target of the parts that were run."""
    found: list[Verdict] = []
    if "arms" in parts:
        rows = parts["arms"]["rows"]
        rate = {name: row["rollouts_per_s"]["median"] for name, row in rows.items()}
        found += [
            Verdict(f"{name}, throughput over its bound", _NEAR, row["of_bound"]["median"], at_least=True)
            for name, row in rows.items()
        ]
        most_of_bound = max(row["of_bound"]["median"] for row in rows.values())
        found.append(Verdict("any arm, throughput over its bound", _OVER, most_of_bound))
        found.append(
            Verdict("η = 4 over synchronous, times", 2.0, rate["eta-4"] / rate["sync"], at_least=True)
        )
        for eta in (1, 2, 4, 8):
            most = most_stale(rows[f"eta-{eta}"]["staleness"])
            found.append(Verdict(f"η = {eta}, largest staleness", eta, most, always=True))
    if "updates" in parts:
        rows = parts["updates"]["rows"]
        share = {name: row["out_of_service"]["median"] for name, row in rows.items()}
        lost = max(
            row["unaccounted"] + row["tokens_failed"]["high"] + row["tokens_dropped"]["high"]
            for row in rows.values()
        )
        rolling = share["rolling, 2 of 8 at a time"] / share["global pause"]
        found += [
            Verdict("tokens lost in updates", 0.0, lost, always=True),
            Verdict("time out of service, rolling over global pause", 0.75, rolling),
        ]
    if "switches" in parts:
        busy = [1 - row["idle_environments"]["median"] for row in parts["switches"]["rows"].values()]
        found.append(
            Verdict(
                "environments busy, all switches over none, times", 1.5, busy[-1] / busy[0], at_least=True
            )
        )
    if "unlucky" in parts:
        row = parts["unlucky"]["rows"]["eta-4, kills"]
        found += [
            Verdict("η = 4 under kills, largest staleness", 4, most_stale(row["staleness"]), always=True),
            Verdict("sampled tokens not accounted for under kills", 0, row["unaccounted"], always=True),
        ]
    largest = parts.get("larger_batch", {}).get("rows", {}).get("eta-4, 1000 workers")
    if largest:
        per = 1e5 * largest["cpu_s"] / largest["rollouts"]
        found.append(Verdict("1,000 workers, processor seconds for 100,000 rollouts", 120, per))
    return found


def table(verdicts: list[Verdict]) -> Table:
    """For people."""
    out = Table("target (simulated)", "wanted", "figure", "", title="Targets")
    for verdict in verdicts:
        sign = "≥" if verdict.at_least else "≤"
        met = "[green]met[/]" if verdict.met else "[red]missed[/]"
        out.add_row(verdict.what, f"{sign} {verdict.wanted:,g}", f"{verdict.figure:,.2f}", met)
    return out
