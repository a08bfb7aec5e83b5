"""What tasks cost: `make bench NAME=tasks`, or `python -m benchmarks.tasks [--quick] [--only PART]`.

Reading SWE-bench rows, checking what ships, and playing the gymnasium environments: how long, and what they
leave behind. Prints tables, writes benchmarks/out/tasks.json. A part that cannot be run is a failure, and is
not passed over.
"""

import argparse
import importlib
import os
import platform
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.sandbox.timing import Clock, Figures
from benchmarks.tasks import targets
from harnessgym.run_folder import write_json

_OUT = Path("benchmarks/out/tasks.json")
_PARTS = {
    "loading": "benchmarks.tasks.loading:measure",
    "check": "benchmarks.tasks.checks:measure",
    "envs": "benchmarks.tasks.playing:costs",
    "left_behind": "benchmarks.tasks.playing:leavings",
}


def main() -> None:
    """Measure, print, write. Exits with 1 when a part failed or a target is missed; with `--quick`, times
    do not count.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tasks", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions; times are no verdict")
    parser.add_argument("--only", choices=sorted(_PARTS), action="append", metavar="PART", help="repeatable")
    options = parser.parse_args()
    console, parts, failed = Console(), dict[str, dict[str, Figures]](), dict[str, str]()
    for name in options.only or _PARTS:
        console.print(f"{name} ...")
        clock = Clock()
        parts[name] = {}
        try:
            for row, figures in _measure(_PARTS[name], quick=options.quick):
                parts[name][row] = figures
        except Exception as error:  # noqa: BLE001  # told below, and the run fails
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
        console.print(_table(f"{name}, {clock():.0f} s", parts[name]))
    verdicts = targets.judge(parts)
    console.print(targets.table(verdicts))
    for name, why in failed.items():
        console.print(f"{name} could not be measured: {why}", style="red", markup=False)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
    out: dict[str, Any] = {"machine": machine, "quick": options.quick, **parts, "failed": failed}
    write_json(_OUT, {**out, "checks": [verdict.to_dict() for verdict in verdicts]})
    console.print(f"Machine: {machine}. Written to {_OUT}.")
    missed = [verdict for verdict in verdicts if not verdict.met]
    counts = [verdict for verdict in missed if not options.quick or verdict.always or verdict.figure is None]
    sys.exit(1 if failed or counts else 0)


def _measure(target: str, *, quick: bool) -> Iterator[tuple[str, Figures]]:
    module, _, name = target.partition(":")
    yield from getattr(importlib.import_module(module), name)(quick=quick)


def _table(name: str, rows: dict[str, Figures]) -> Table:
    table = Table("measured", "figure", "value", title=name)
    for what, figures in rows.items():
        for figure, value in figures.items():
            table.add_row(what, figure, f"{value:,.2f}")
    return table


if __name__ == "__main__":
    main()
