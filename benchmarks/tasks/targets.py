"""What the tasks benchmark is to reach, and what a run of it did."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from benchmarks.sandbox.timing import Figures

Parts = Mapping[str, Mapping[str, Figures]]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one figure of all rows whose name begins so."""

    what: str
    part: str
    row: str
    figure: str
    wanted: float
    at_least: bool = False
    always: bool = False
    """Whether it must hold in a quick run too: it is no time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a target. The worst row counts."""

    what: str
    wanted: float
    at_least: bool
    always: bool
    figure: float | None
    """None: no such row was measured, which is a miss."""

    @property
    def met(self) -> bool:
        """Whether there is a figure, and it is good enough."""
        if self.figure is None:
            return False
        return self.figure >= self.wanted if self.at_least else self.figure <= self.wanted

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "met": self.met}


TARGETS = (
    Target("10,000 SWE-bench rows to tasks, s", "loading", "10,000 rows", "seconds", 3.0),
    Target("shipped tasks checked that did not pass", "check", "tasks check", "not_passed", 0.0, always=True),
    Target("reset in bubblewrap, p95 ms", "envs", "reset, swe (bubblewrap)", "p95_ms", 40.0),
    Target("reset in Docker, warm, p95 ms", "envs", "reset, swe (docker)", "p95_ms", 150.0),
    Target("step beyond its command, p95 ms", "envs", "step beyond its command, swe", "p95_ms", 5.0),
    Target("8 vectorised over one, times", "envs", "8 vectorised", "times", 6.0, at_least=True),
    Target("left behind by environments", "left_behind", "", "left_behind", 0.0, always=True),
)


def judge(parts: Parts) -> list[Verdict]:
    """One verdict for each target of the parts that were asked for; a part that failed is an empty one."""
    verdicts = []
    for target in TARGETS:
        if target.part not in parts:
            continue
        rows = parts[target.part].items()
        found = [
            figures[target.figure]
            for row, figures in rows
            if row.startswith(target.row) and target.figure in figures
        ]
        worst = None if not found else min(found) if target.at_least else max(found)
        verdicts.append(Verdict(target.what, target.wanted, target.at_least, target.always, worst))
    return verdicts


def table(verdicts: list[Verdict]) -> Table:
    """For people."""
    out = Table("target", "wanted", "measured", "", title="Targets")
    for verdict in verdicts:
        shown = "not measured" if verdict.figure is None else f"{verdict.figure:,.2f}"
        sign = "≥" if verdict.at_least else "≤"
        out.add_row(
            verdict.what,
            f"{sign} {verdict.wanted:,g}",
            shown,
            "[green]met[/]" if verdict.met else "[red]missed[/]",
        )
    return out
