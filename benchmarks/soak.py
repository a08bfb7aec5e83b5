"""Many kills of every process: `python -m benchmarks.soak [--kills 50] [--seed 0] [--fresh]`.

Campaigns of mixed kills follow each other until every process was killed often enough. Finished campaigns are remembered in
`runs/soak/state.json`, so an interrupted soak goes on where it was. Writes `benchmarks/out/soak.json` and prints a table.
"""

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.recovery import VICTIMS, Campaign
from harnessgym.run_folder import write_json

_ROOT = Path("runs/soak")
_PER_CAMPAIGN = 5
"""Kills of each process in one campaign."""


def main() -> None:
    """Run what is left of the soak, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="kills of each process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fresh", action="store_true", help="forget finished campaigns")
    options = parser.parse_args()
    if options.fresh:
        shutil.rmtree(_ROOT, ignore_errors=True)
    state_path = _ROOT / "state.json"
    done = json.loads(state_path.read_text()) if state_path.exists() else []
    began = time.monotonic()
    while min(_kills(done).values()) < options.kills:
        number = len(done)
        folder = _ROOT / f"campaign-{number:03d}"
        shutil.rmtree(folder, ignore_errors=True)
        victims = list(VICTIMS) * _PER_CAMPAIGN
        random.Random(options.seed * 1000 + number).shuffle(victims)
        sizes = ["--trainer.steps", str(len(victims) + 2), "--trainer.groups_per_step", "4", "--trainer.group_size", "4"]
        report = Campaign(folder, victims, options.seed * 1000 + number, sizes).run()
        done.append(asdict(report))
        write_json(state_path, done)
        print(f"campaign {number}: {sum(report.kills.values())} kills, lost {report.lost}, doubled {report.trained_twice}, "
              f"findings {len(report.findings)}, {report.wall_s:.0f} s", flush=True)  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(_report(done, options.seed, time.monotonic() - began))


def _kills(done: list[dict]) -> dict[str, int]:
    """Kills so far by kind of process."""
    return {victim: sum(report["kills"].get(victim, 0) for report in done) for victim in VICTIMS}


def _report(done: list[dict], seed: int, wall_s: float) -> int:
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    table = Table("process", "kills", "next activity, s (median)", "(max)", title=f"Soak, seed {seed}, {machine}")
    for victim in VICTIMS:
        times = [value for report in done for value in report["recovery_s"].get(victim, [])]
        middle, worst = (f"{statistics.median(times):.1f}", f"{max(times):.1f}") if times else ("-", "-")
        table.add_row(victim, str(_kills(done)[victim]), middle, worst)
    totals = {
        "campaigns": len(done),
        "calls_committed": sum(report["calls"] for report in done),
        "calls_lost": sum(report["lost"] for report in done),
        "rollouts_trained_twice": sum(report["trained_twice"] for report in done),
        "findings_of_verify": sum(len(report["findings"]) for report in done),
        "rollouts_run_again": sum(report["failed_rollouts"] for report in done),
        "stop_reasons": dict(sum((Counter(report["stop_reasons"]) for report in done), Counter())),
        "training_steps": sum(report["steps"] for report in done),
        "campaign_wall_s": round(sum(report["wall_s"] for report in done)),
        "wall_s": round(wall_s),
    }
    console = Console()
    console.print(table)
    console.print(totals)
    write_json(Path("benchmarks/out/soak.json"), {"seed": seed, "machine": machine, "totals": totals, "campaigns": done})
    return int(bool(totals["calls_lost"] or totals["rollouts_trained_twice"] or totals["findings_of_verify"]))


if __name__ == "__main__":
    main()
