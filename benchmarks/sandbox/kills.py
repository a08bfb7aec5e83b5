"""Kills of a node and cuts of its engine: `python -m benchmarks.sandbox.kills [--kills 50] [--cuts 50]
[--sandbox docker]`.

Runs of 32 rollouts follow each other until the node has got SIGKILL, and its connection to the Docker engine
was cut, often enough; what must hold is in `benchmarks/sandbox/campaign.py`. Finished runs are remembered in
`runs/sandbox-kills`, so that an interrupted soak goes on where it was. Prints a table, writes
benchmarks/out/sandbox-kills.json.
"""

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.sandbox.campaign import CUT, MOMENTS, STARTING, Campaign
from benchmarks.sandbox.phases import PHASES
from harnessgym.registry import load
from harnessgym.run_folder import write_json

_ROOT = Path("runs/sandbox-kills")
_OUT = Path("benchmarks/out")
_PER_RUN = 8
"""Kills of one run, and cuts of it."""


def schedule(draw: random.Random, kills: int, cuts: int) -> list[str]:
    """So many kills at random moments, mixed with cuts. One kill in four hits a node that an earlier kill
    made start.
    """
    rounds = [[draw.choice(PHASES)] for _ in range(kills - kills // 4)]
    for chosen in draw.sample(rounds, kills // 4):
        chosen.append(STARTING)
    rounds += [[CUT] for _ in range(cuts)]
    draw.shuffle(rounds)
    return [event for events in rounds for event in events]


def main() -> None:
    """Run what is left, then report. Exits with 1 if anything was lost, doubled or leaked."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sandbox.kills", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--kills", type=int, default=50, help="of the node")
    parser.add_argument(
        "--cuts", type=int, help="of the connection to the engine; as many as kills, where there is an engine"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sandbox", choices=("docker", "bubblewrap"), default="docker")
    parser.add_argument("--rollouts", type=int, default=32, help="of one run; 8 tasks")
    parser.add_argument("--fresh", action="store_true", help="forget finished runs")
    told = parser.parse_args()
    if problem := load("sandbox", told.sandbox).unavailable():
        sys.exit(problem)
    cuts = (told.kills if told.cuts is None else told.cuts) if told.sandbox == "docker" else 0
    if told.fresh:
        shutil.rmtree(_ROOT / told.sandbox, ignore_errors=True)
    state = _ROOT / told.sandbox / "state.json"
    done = json.loads(state.read_text()) if state.exists() else []
    while (kills_left := told.kills - _kills(done)) > 0 or cuts - _cuts(done) > 0:
        number = len(done)
        draw = random.Random(f"{told.seed} {number}")
        events = schedule(draw, max(0, min(_PER_RUN, kills_left)), max(0, min(_PER_RUN, cuts - _cuts(done))))
        campaign = Campaign(told.sandbox, told.seed * 1000 + number, rollouts=told.rollouts)
        report = campaign.run(events)
        done.append(vars(report) | {"wrong": vars(report.wrong), "clean": report.clean, "schedule": events})
        write_json(state, done)
        print(f"run {number}: {report.kills.total()} kills, {report.cuts} cuts, {report.wall_s:.0f} s: "
              f"{'clean' if report.clean else f'NOT CLEAN, see {campaign.folder}'}", flush=True)  # fmt: skip
    sys.exit(_report(done, told.sandbox, told.seed))


def _kills(done: list[dict[str, Any]]) -> int:
    return sum(sum(each["kills"].values()) for each in done)


def _cuts(done: list[dict[str, Any]]) -> int:
    return sum(each["cuts"] for each in done)


def _report(done: list[dict[str, Any]], sandbox: str, seed: int) -> int:
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    killed, hit, causes = (_sum(done, key) for key in ("kills", "hit", "causes"))
    killed[CUT] = _cuts(done)
    table = Table("moment", "kills or cuts", "rollouts hit", "to the next progress, s (median)", "(max)",
                  title=f"Kills of the node, {sandbox}, seed {seed}, {machine}")  # fmt: skip
    for event in (*MOMENTS, *([CUT] if killed[CUT] else [])):
        times = [value for each in done for value in each["recovery_s"].get(event, [])]
        middle, worst = (f"{statistics.median(times):.1f}", f"{max(times):.1f}") if times else ("-", "-")
        table.add_row(event, str(killed[event]), str(hit[event]) if event in PHASES else "-", middle, worst)
    totals = {
        "runs": len(done),
        "kills": _kills(done),
        "cuts": killed[CUT],
        "connections_dropped": sum(each["dropped"] for each in done),
        "rollouts_finished": sum(each["rollouts"] for each in done),
        "attempts_that_came_to_nothing": dict(causes),
        "nodes_that_gave_up": sum(len(each["gave_up"]) for each in done),
        "calls_committed": sum(each["calls"] for each in done),
        "calls_lost": sum(each["lost_calls"] for each in done),
        **{
            f"rollouts_{what}": sum(len(each["wrong"][what]) for each in done)
            for what in ("lost", "doubled", "unearned")
        },
        "leaks": sum(len(each["leaks"]) for each in done),
        "left_for_the_next_start": sum(len(each["for_next"]) for each in done),
        "findings_of_verify": sum(len(each["findings"]) for each in done),
        "wall_s": round(sum(each["wall_s"] for each in done)),
    }
    console = Console()
    console.print(table)
    console.print(totals)
    out = _OUT / ("sandbox-kills.json" if sandbox == "docker" else f"sandbox-kills-{sandbox}.json")
    write_json(out, {"seed": seed, "sandbox": sandbox, "machine": machine, "totals": totals, "runs": done})
    console.print(f"Written to {out}.")
    return int(not all(each["clean"] for each in done))


def _sum(done: list[dict[str, Any]], key: str) -> Counter[str]:
    return sum((Counter(each[key]) for each in done), Counter())


if __name__ == "__main__":
    main()
