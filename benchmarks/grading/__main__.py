"""What judging by value costs: `make bench NAME=grading`, or `python -m benchmarks.grading [--quick]`.

Grades the solution of one task of each package of the `swe` set, from the exported workspace to the verdict:
by the task's `pytest` check alone, and by value too, in turn. The second is to take at most 2.5 times as long
as the first. A solution is the dearest candidate: one that fails the check is not judged by value. Beside
that: the preparation, once for a task; the stages of a judgement, each alone; and a second opinion that is
only stored as evidence. Prints tables, writes benchmarks/out/grading.json.
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.grading.costs import GradingCost, measure, sample
from environments.swe.package import packages
from harnessgym.grading.cheats.scripted_agent import ScriptedAgent
from harnessgym.registry import load
from harnessgym.run_folder import write_json
from harnessgym.tasks.source import all_tasks, task_set

BOUND = 2.5
_QUICK = ("inflection", "itsdangerous")
"""Packages with `--quick`: those whose tests take the least time."""
_REPEATS = 3


def main() -> None:
    """Measure, print, write. Exits with 1 if a solution got no reward or the bound is missed; with `--quick`,
    times do not count.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.grading", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--quick", action="store_true", help="two packages, once each; times are no verdict")
    parser.add_argument("--repeats", type=int, help=f"verdicts of each kind; {_REPEATS}, or 1 with --quick")
    parser.add_argument(
        "--package", action="append", choices=sorted(packages()), help="only this one; repeatable"
    )
    parser.add_argument("--seed", type=int, default=0, help="draws the tasks, and inputs of single stages")
    parser.add_argument("--sandbox", choices=("bubblewrap", "docker"), default="bubblewrap")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/grading.json"))
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else _REPEATS)
    console = Console()
    before = os.getloadavg()[0]
    costs = asyncio.run(_measured(options, console))
    ratio = overall(costs)
    console.print(_verdicts(costs, of_sandboxes=options.sandbox != "docker"))
    console.print(_stages(costs))
    faults = [f"{cost.task}: {fault}" for cost in costs for fault in cost.faults]
    for fault in faults:
        console.print(f"A solution got no reward: {fault}", style="red", markup=False)
    met = ratio <= BOUND
    console.print(
        f"By value over pytest alone, all tasks: {ratio:.2f}, wanted at most {BOUND}: "
        f"{'[green]met[/]' if met else '[red]missed[/]'}"
    )
    machine = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "load": [round(before, 1), round(os.getloadavg()[0], 1)],
    }
    stated = {name: getattr(options, name) for name in ("quick", "repeats", "seed", "sandbox")}
    out: dict[str, Any] = {"machine": machine, **stated, "ratio": round(ratio, 3), "bound": BOUND, "met": met}
    write_json(options.out, {**out, "tasks": [cost.to_dict() for cost in costs]})
    console.print(f"Machine: {machine}, {stated}. Written to {options.out}.")
    sys.exit(1 if faults or not (met or options.quick) else 0)


def overall(costs: Sequence[GradingCost]) -> float:
    """Wall time of verdicts by value as a multiple of those by `pytest` alone, each task once."""
    return sum(cost.by_value.median_s for cost in costs) / sum(cost.pytest.median_s for cost in costs)


async def _measured(options: argparse.Namespace, console: Console) -> list[GradingCost]:
    factory = load("sandbox", options.sandbox)
    why = factory.unavailable()
    if why is not None:
        sys.exit(f"{options.sandbox}: {why}")
    tasks = sample(
        all_tasks(task_set("swe")), options.seed, options.package or (_QUICK if options.quick else ())
    )
    costs = []
    with tempfile.TemporaryDirectory(prefix="harnessgym-grading-") as name:
        folder = Path(name)
        async with factory(factory.settings(workspace_root=folder / "sandboxes")) as backend:
            for task in tasks:
                console.print(f"{task.id} ...", markup=False)
                costs.append(
                    await measure(task, ScriptedAgent(backend), folder, options.repeats, options.seed)
                )
    return costs


def _verdicts(costs: Sequence[GradingCost], *, of_sandboxes: bool) -> Table:
    table = Table(
        "task", "pytest, s", "by value, s", "ratio", "processor, s",
        "opinion alone, s", "preparation, s", "plan",
        title="From the exported workspace to the verdict (medians)",
    )  # fmt: skip
    for cost in costs:
        # The processes of containers are no descendants of this one.
        processor = f"{cost.pytest.median_processor_s:.2f} → {cost.by_value.median_processor_s:.2f}"
        seconds = (f"{each.median_s:.2f}" for each in (cost.pytest, cost.by_value))
        table.add_row(
            cost.task, *seconds, f"{cost.ratio:.2f}", processor if of_sandboxes else "not seen",
            f"{cost.opinion.median_s:.1f}", f"{cost.preparation.median_s:.1f}", cost.plan,
        )  # fmt: skip
    return table


def _stages(costs: Sequence[GradingCost]) -> Table:
    table = Table(
        "task", "drawing, s", "gold, s", "initial files, s", "candidate, s", "tests", "assertions compared",
        title="Stages of a judgement, each alone (medians), and what it compares",
    )  # fmt: skip
    for cost in costs:
        seconds = (f"{each.median_s:.2f}" for each in (cost.drawing, cost.gold, cost.start, cost.candidate))
        table.add_row(cost.task, *seconds, _span(cost.tests), _span(cost.assertions))
    return table


def _span(counts: Sequence[int]) -> str:
    return f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else str(next(iter(counts), 0))


if __name__ == "__main__":
    main()
