"""What sandboxes cost: `make bench NAME=sandbox`, or `python -m benchmarks.sandbox [--quick] [--only
bubblewrap|docker]`.

Starts, warm claims, commands, diffs and graded rollouts, beside the plain docker command line on the same
engine; then how busy environments are when rollouts are pipelined, beside batches that wait for their last
rollout (simulated latencies). Without an engine at DOCKER_HOST a private one is started. Prints tables,
writes benchmarks/out/sandbox.json.
"""

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.sandbox import measures, plain, utilisation
from benchmarks.sandbox.dockerd import Dockerd
from benchmarks.sandbox.timing import Figures
from harnessgym.run_folder import write_json
from harnessgym.sandboxes.engine import unavailable

_OUT = Path("benchmarks/out/sandbox.json")
_IMAGE = "harnessgym/python:latest"
_TARGETS = (
    ("bubblewrap: open and `true`, p95 ms", "bubblewrap", "open and `true`", "p95_ms", 15.0, False),
    ("docker: warm claim, p50 ms", "docker", "warm claim", "p50_ms", 30.0, False),
    ("docker: command, p50 ms", "docker", "command", "p50_ms", 3.0, False),
    (
        "docker: warm claim and a diff of 10 MiB, p50 ms",
        "docker",
        "warm claim and a diff of 10 MiB",
        "p50_ms",
        100.0,
        False,
    ),
    ("bubblewrap: graded rollouts/s", "bubblewrap", "graded rollouts", "rollouts_per_s", 25.0, True),
    ("docker: graded rollouts/s", "docker", "graded rollouts", "rollouts_per_s", 3.0, True),
)


def main() -> None:
    """Measure, print, write. Exits with 1 when a target is missed, unless `--quick`."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sandbox", description=__doc__.split("\n\n")[1]
    )
    parser.add_argument("--quick", action="store_true", help="few repetitions, no verdict")
    parser.add_argument("--only", choices=("bubblewrap", "docker", "utilisation"))
    options = parser.parse_args()
    out: dict[str, Any] = {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
    }
    if options.only in (None, "bubblewrap"):
        out["bubblewrap"] = asyncio.run(_bubblewrap(options.quick))
    if options.only in (None, "docker"):
        with _engine():
            out["plain docker"] = asyncio.run(plain.measure(_IMAGE, 5 if options.quick else 20))
            out["docker"] = asyncio.run(_docker(options.quick))
    if options.only in (None, "utilisation"):
        out["utilisation (simulated latencies)"] = asyncio.run(_utilisation(1 if options.quick else 5))
    console = Console()
    for name, figures in out.items():
        if name != "machine":
            console.print(_table(name, figures))
    out["checks"] = [_check(out, *target) for target in _TARGETS if target[1] in out]
    console.print(_check_table(out["checks"]))
    write_json(_OUT, out)
    console.print(f"Written to {_OUT}.")
    sys.exit(1 if any(not check["met"] for check in out["checks"]) and not options.quick else 0)


@contextmanager
def _engine() -> Iterator[None]:
    """The engine that is there, else a private one as long as this runs."""
    if unavailable() is None:
        _build()
        yield
        return
    with Dockerd() as own:
        os.environ["DOCKER_HOST"] = own.host
        _build()
        yield


def _build() -> None:
    subprocess.run([sys.executable, "-m", "harnessgym", "images", "build", "python"], check=True)


async def _bubblewrap(quick: bool) -> dict[str, Figures]:
    with tempfile.TemporaryDirectory() as name:
        async with measures.backend("bubblewrap", Path(name), spares=0) as opened:
            return {
                "open and `true`": await measures.starts(opened, 20 if quick else 200, 0.0),
                "command": await measures.commands(opened, 20 if quick else 200),
                "open and a diff of 10 MiB": await measures.diffs(opened, 5 if quick else 30, 0.0),
                "graded rollouts": await measures.graded(opened, 20 if quick else 200, 8),
            }


async def _docker(quick: bool) -> dict[str, Figures]:
    count = 5 if quick else 30
    with tempfile.TemporaryDirectory() as name:
        async with measures.backend("docker", Path(name) / "cold", spares=0) as opened:
            out = {
                "cold start and `true`": await measures.starts(opened, count, 0.0),
                "command": await measures.commands(opened, 20 if quick else 200),
            }
        async with measures.backend("docker", Path(name) / "warm", spares=8) as opened:
            out["warm claim"] = await measures.claims(opened, count, 1.0)
            out["warm claim and a diff of 10 MiB"] = await measures.diffs(opened, count, 1.0)
            out["graded rollouts"] = await measures.graded(opened, 10 if quick else 60, 4)
    return out


async def _utilisation(seeds: int) -> dict[str, Figures]:
    load, out = utilisation.Load(), {}
    for name, way in (("batch-synchronous", utilisation.synchronous), ("pipelined", utilisation.pipelined)):
        found = [(await way(load, seed))["utilisation"] for seed in range(seeds)]
        out[name] = {
            "mean": statistics.fmean(found),
            "least": min(found),
            "most": max(found),
            "seeds": float(seeds),
        }
    ratio = out["pipelined"]["mean"] / out["batch-synchronous"]["mean"]
    return {**out, "pipelined / batch-synchronous": {"ratio": ratio}}


def _table(name: str, figures: dict[str, Figures]) -> Table:
    table = Table("measured", "figure", "value", title=name)
    for what, values in figures.items():
        for figure, value in values.items():
            table.add_row(what, figure, f"{value:,.2f}")
    return table


def _check(
    out: dict[str, Any], what: str, part: str, row: str, figure: str, wanted: float, at_least: bool
) -> dict[str, Any]:
    found = out[part][row][figure]
    return {
        "what": what,
        "figure": round(found, 2),
        "wanted": wanted,
        "at_least": at_least,
        "met": found >= wanted if at_least else found <= wanted,
    }


def _check_table(checks: list[dict[str, Any]]) -> Table:
    table = Table("target", "wanted", "measured", "", title="Targets")
    for check in checks:
        sign = "≥" if check["at_least"] else "≤"
        verdict = "[green]met[/]" if check["met"] else "[red]missed[/]"
        table.add_row(check["what"], f"{sign} {check['wanted']:,}", f"{check['figure']:,}", verdict)
    return table


if __name__ == "__main__":
    main()
