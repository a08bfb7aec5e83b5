"""Ways to train, simulated: `make bench NAME=async`, or `python -m benchmarks.async [--quick] [--resume]
[--only PART]`.

Synchronous, one-step, asynchronous with η of 1 to 8, periodic, recycling and over-launching training on the
same draws, each against its bound; rolling updates against a pause of all engines; DART's switches one at a
time; what is done with stale groups; replays; and curves over 1 to 1,000 workers. Every figure is simulated:
real decisions, drawn durations, virtual time. Prints tables, writes benchmarks/out/async.json.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.asynchrony import parts, targets
from harnessgym.run_folder import write_json
from harnessgym.simulation.outcome import LEAST_SEEDS
from harnessgym.simulation.report import most_stale

_OUT = Path("benchmarks/out/async.json")
_ALL_SEEDS = ("arms", "updates", "switches")
_COLUMNS = (
    ("rollouts_per_s", "rollouts/s", 2), ("of_bound", "of the bound", 3), ("idle_engines", "engines idle", 2),
    ("idle_environments", "environments idle", 2), ("idle_trainer", "trainer idle", 2), ("mean_staleness", "staleness", 2),
    ("staleness", "at most", 0), ("off_policy", "off-policy", 2), ("length_bias", "length bias", 3),
    ("out_of_service", "out of service", 3),
)  # fmt: skip


def main() -> None:
    """Simulate, print, write. Exits with 1 when a target is missed; with `--quick`, only those that hold
    for any seed count.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.async", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--quick", action="store_true", help="two seeds, few steps, up to 30 workers")
    parser.add_argument(
        "--only", choices=sorted(parts.PARTS), action="append", metavar="PART", help="repeatable"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=10,
        help="of arms, updates and switches; other parts have at most 6, curves over workers 3",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the parts that an interrupted run of this kind has written",
    )
    parser.add_argument("--plot", type=Path, help="also draw the figures, as PNG")
    options = parser.parse_args()
    console, kind = Console(width=max(180, Console().width)), {"quick": options.quick, "seeds": options.seeds}
    out = _written(_OUT, kind) if options.resume else {}
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
    verdicts = targets.judge(out)
    for name in options.only or parts.PARTS:
        if name in out:
            console.print(_table(name, out[name]["rows"], out[name]["cpu_s"]))
            continue
        began = time.perf_counter()
        with console.status(f"{name} (simulated) ...") as status:
            rows = {}
            seeds = (
                2
                if options.quick
                else options.seeds
                if name in _ALL_SEEDS
                else min(options.seeds, LEAST_SEEDS)
            )
            for row, figures in parts.PARTS[name](seeds, quick=options.quick):
                rows[row] = figures
                status.update(f"{name} (simulated): {row}")
        cpu_s = sum(figures["cpu_s"] for figures in rows.values())
        out[name] = {"rows": rows, "wall_s": time.perf_counter() - began, "cpu_s": cpu_s}
        console.print(_table(name, rows, out[name]["cpu_s"]))
        verdicts = targets.judge(out)
        checks = [verdict.to_dict() for verdict in verdicts]
        write_json(_OUT, {"simulated": True, "machine": machine, **kind, "parts": out, "checks": checks})
    console.print(targets.table(verdicts))
    console.print(f"Simulated. Machine: {machine}. Written to {_OUT}.")
    if options.plot and "arms" in out:
        from benchmarks.asynchrony.plot import draw

        draw(out, options.plot)
        console.print(f"Drawn to {options.plot}.")
    sys.exit(any(not verdict.met and (verdict.always or not options.quick) for verdict in verdicts))


def _written(path: Path, kind: dict[str, Any]) -> dict[str, Any]:
    """The parts that a run of a kind has left at a path."""
    found = json.loads(path.read_text()) if path.exists() else {}
    return found.get("parts", {}) if all(found.get(name) == value for name, value in kind.items()) else {}


def _table(name: str, rows: dict[str, dict[str, Any]], cpu_s: float) -> Table:
    table = Table(
        name,
        *(title for _, title, _ in _COLUMNS),
        "limit",
        "seeds",
        title=f"{name}: simulated, {cpu_s:.0f} s of processor",
    )
    for row, figures in rows.items():
        cells = (
            str(most_stale(figures[key])) if key == "staleness" else _shown(figures[key], digits)
            for key, _, digits in _COLUMNS
        )
        table.add_row(row, *cells, figures["limit"], str(figures["seeds"]))
    return table


def _shown(spread: dict[str, float], digits: int) -> str:
    middle = f"{spread['median']:.{digits}f}"
    return (
        middle
        if spread["low"] == spread["high"]
        else f"{middle} [{spread['low']:.{digits}f}, {spread['high']:.{digits}f}]"
    )


if __name__ == "__main__":
    main()
