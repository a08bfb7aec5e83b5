"""What the store costs: `make bench NAME=store`, or `python -m benchmarks.store [--quick] [--only
sqlite|postgresql]`.

Calls of 600 tokens (400 read, 200 sampled) with the bodies that a harness sends, stored as the proxy stores
them, beside the same calls as naive rows of JSON; then what reading them back costs. SQLite commits survive
any kill (synchronous=NORMAL); PostgreSQL's survive power loss too (fsync on). Prints tables, writes
benchmarks/out/store.json.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.store import measures
from harnessgym.run_folder import write_json
from tests.support.postgres import PostgresServer, postgres_available

_OUT = Path("benchmarks/out/store.json")


def main() -> None:
    """Measure, print, write. Exits with 1 when a target is missed, unless `--quick`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__.split("\n\n")[1])
    parser.add_argument("--quick", action="store_true", help="small loads, no verdict")
    parser.add_argument("--only", choices=("sqlite", "postgresql"))
    options = parser.parse_args()
    out: dict[str, Any] = {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
    }
    if options.only != "postgresql":
        out["sqlite"] = _on_sqlite(options.quick)
    if options.only != "sqlite":
        problem = postgres_available()
        if problem is not None:
            sys.exit(problem)
        with PostgresServer(durable=True) as cluster:
            out["postgresql"] = _measure(cluster.create_database, options.quick)
    console = Console()
    for name in ("sqlite", "postgresql"):
        if name in out:
            console.print(_figures(name, out[name]))
    out["checks"] = _checks(out)
    console.print(_check_table(out["checks"]))
    write_json(_OUT, out)
    console.print(f"Written to {_OUT}.")
    sys.exit(1 if any(not check["met"] for check in out["checks"]) and not options.quick else 0)


def _on_sqlite(quick: bool) -> dict[str, Any]:
    folder, made = Path(tempfile.mkdtemp(prefix="harnessgym-bench-store-")), iter(range(1_000))
    try:
        return _measure(lambda: f"sqlite:///{folder}/{next(made)}.db", quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(new: Callable[[], str], quick: bool) -> dict[str, Any]:
    turns, long, many, listed = (4, 50, 50, 500) if quick else (50, 1_000, 1_000, 10_000)
    out: dict[str, Any] = {}
    for way in ("ours", "naive"):
        for processes, tasks in ((1, 32), (4, 8)):
            print(f"{way}: {processes} x {tasks} tasks ...", flush=True)
            out[f"{way}, {processes} x {tasks} tasks"] = measures.committed(new, processes, tasks, turns, way)
    print("reading ...", flush=True)
    out[f"one session of {long} turns"] = measures.long_session(new, long)
    out["forest of 1M tokens"] = measures.one_forest(new, 1_000, 1_000_000)
    out["rollouts of 30 turns"] = measures.many_forests(new, many, 30)
    out["listing, ms"] = measures.listed(new, listed)
    return out


def _figures(name: str, figures: dict[str, dict[str, float]]) -> Table:
    table = Table("measured", "figure", "value", title=name)
    for what, values in figures.items():
        for figure, value in values.items():
            table.add_row(what, figure, f"{value:,.2f}")
    return table


def _checks(out: dict[str, Any]) -> list[dict[str, Any]]:
    """Each target, the figure, and whether it is met."""
    checks: list[dict[str, Any]] = []

    def check(what: str, figure: float, wanted: float, *, at_least: bool = False) -> None:
        met = figure >= wanted if at_least else figure <= wanted
        checks.append(
            {"what": what, "figure": round(figure, 2), "wanted": wanted, "at_least": at_least, "met": met}
        )

    for name in ("sqlite", "postgresql"):
        if name not in out:
            continue
        found = out[name]
        ours = found["ours, 1 x 32 tasks"]
        check(
            f"{name}: committed calls/s, 32 tasks in one process", ours["calls_per_s"], 1_500, at_least=True
        )
        long = next(values for what, values in found.items() if what.startswith("one session"))
        check(f"{name}: bytes a token, 50 turns", ours["bytes_per_token"], 12)
        check(f"{name}: bytes a token, 1,000 turns", long["bytes_per_token"], 12)
        check(f"{name}: forest of one rollout of 1M tokens, s", found["forest of 1M tokens"]["forest_s"], 1)
        many = found["rollouts of 30 turns"]
        check(f"{name}: tokens/s, forests of 1,000 rollouts", many["forest_tokens_per_s"], 5e6, at_least=True)
        check(
            f"{name}: tokens/s, training rows of 1,000 rollouts",
            many["rows_tokens_per_s"],
            5e6,
            at_least=True,
        )
        filtered = {what: value for what, value in found["listing, ms"].items() if what != "all of them"}
        check(f"{name}: listing with filters over 10,000 rollouts, ms", max(filtered.values()), 300)
    return checks


def _check_table(checks: list[dict[str, Any]]) -> Table:
    table = Table("target", "wanted", "measured", "", title="Targets")
    for check in checks:
        sign = "≥" if check["at_least"] else "≤"
        verdict = "[green]met[/]" if check["met"] else "[red]missed[/]"
        table.add_row(check["what"], f"{sign} {check['wanted']:,}", f"{check['figure']:,}", verdict)
    return table


if __name__ == "__main__":
    main()
