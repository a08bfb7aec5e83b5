"""Kill and stop everything that a run is made of: `python -m benchmarks.soak [--kills 50] [--seed 0] [--only
KIND]`.

Each victim is stopped as often as it is killed: half the time for longer than every limit, half the time for
a moment. Campaigns follow each other until that was done often enough. `processes` strikes those of a run on
one machine in mixed order; `agents` the weight agent of an engine outside, and that engine (a stand-in for
vLLM that computes with the embedded engine, and is only stopped); `machines` one of the two raylets of a Ray
cluster with all that it runs. Finished campaigns of the same seed and commit are remembered in
`runs/soak/state.json`, so an interrupted soak continues; `--fresh` forgets them. Writes
`benchmarks/out/soak.json` and prints a table. Exits with 1 if anything was lost, doubled, too stale,
misjudged or otherwise wrong, or was struck less often than asked.
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
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.outside.campaign import AGENT, ENGINE, AgentCampaign
from benchmarks.raylets.campaign import MACHINE, MachineCampaign
from benchmarks.recovery import HANGS, VICTIMS, Blow, Campaign, Report
from benchmarks.remembered import commit
from harnessgym.process import hear_interruptions
from harnessgym.run_folder import write_json
from tests.support.postgres import PostgresServer, postgres_available
from tests.support.raylets import ray_available

_ROOT = Path("runs/soak")
KINDS = {"processes": VICTIMS, "agents": (AGENT, ENGINE), "machines": (MACHINE,)}
"""Kinds of campaign, and the victims of each."""
_NEVER_KILLED = (ENGINE,)
_PER_CAMPAIGN = {"processes": 3, "agents": 5, "machines": 5}
"""Kills of each victim in one campaign, and as many hangs."""
_STEPS = {"kill": 2, "pause": 3, "stop": 8}
"""Training steps that a run may take over one blow: most processes go on while another one is stopped."""
_ENDLESS = 1_000
"""Steps of a run that is interrupted after its last blow."""


def main() -> None:
    """Run what is left of the soak, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="kills of each process, and as many hangs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=sorted(KINDS), help="this kind of campaign alone")
    parser.add_argument("--fresh", action="store_true", help="forget finished campaigns")
    options = parser.parse_args()
    if options.fresh:
        shutil.rmtree(_ROOT, ignore_errors=True)
    state_path, code = _ROOT / "state.json", commit()
    done = remembered(state_path, options.seed, code)
    hear_interruptions()  # an interrupted campaign ends what it started
    began = time.monotonic()
    lacking = {"machines": ray_available() or postgres_available()}
    for kind in [options.only] if options.only else KINDS:
        if problem := lacking.get(kind):
            print(f"Not run: {kind}. {problem}", flush=True)
            continue
        while (left := options.kills - min(_counts(done, KINDS[kind]).values())) > 0:
            number = len(done)
            seed = options.seed * 1000 + number
            report = _campaign(kind, number, seed, schedule(kind, min(left, _PER_CAMPAIGN[kind]), seed))
            done.append({"kind": kind, "seed": options.seed, "commit": code, **asdict(report)})
            write_json(state_path, done)
            blows = sum(sum(counts.values()) for counts in report.blows.values())
            print(
                f"campaign {number} ({kind}): {blows} blows, lost {report.lost}, doubled "
                f"{report.trained_twice}, misjudged {report.judged + report.misjudged}, findings "
                f"{len(report.findings)}, {report.wall_s:.0f} s",
                flush=True,
            )
    wrong = _report(done, options.seed, time.monotonic() - began)
    wanted = [victim for kind in ([options.only] if options.only else KINDS) for victim in KINDS[kind]]
    few = {what: count for what, count in _counts(done, tuple(wanted)).items() if count < options.kills}
    if few:
        print(f"Struck less often than {options.kills} times: {few}.")
    sys.exit(int(wrong or bool(few)))


def remembered(path: Path, seed: int, code: str) -> list[dict[str, Any]]:
    """Finished campaigns of a seed and a commit, `code`. Those of others are forgotten, and it is said."""
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    kept = [each for each in found if (each.get("seed"), each.get("commit")) == (seed, code)]
    if len(kept) < len(found):
        print(
            f"Of {len(found)} remembered campaigns, {len(found) - len(kept)} had another seed or commit: "
            "they run again."
        )
    return kept


def schedule(kind: str, kills: int, seed: int) -> list[Blow]:
    """The blows of a campaign in their order: each victim is stopped as often as it is killed."""
    draw = random.Random(seed)
    blows = []
    for victim in KINDS[kind]:
        first = draw.randrange(len(HANGS))
        blows += [Blow(victim, HANGS[(first + number) % len(HANGS)]) for number in range(kills)]
        blows += [Blow(victim)] * (kills if victim not in _NEVER_KILLED else 0)
    draw.shuffle(blows)
    return blows


def _campaign(kind: str, number: int, seed: int, blows: list[Blow]) -> Report:
    """Run a campaign; its folder goes with it."""
    folder = _ROOT / f"campaign-{number:03d}"
    for path in _ROOT.glob(f"{folder.name}*"):  # of one that was cut off
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    steps = sum(_STEPS[blow.how] for blow in blows) + 2 if kind == "processes" else _ENDLESS
    sizes = ["--trainer.steps", str(steps), "--trainer.groups_per_step", "4", "--trainer.group_size", "4"]
    if kind == "processes":
        report = Campaign(folder, blows, seed, sizes).run()
    elif kind == "agents":
        report = AgentCampaign(folder, blows, seed, sizes).run()
    else:
        with PostgresServer() as database:
            report = MachineCampaign(
                folder.resolve(), blows, seed, sizes, store_url=database.create_database()
            ).run()
    shutil.rmtree(folder, ignore_errors=True)
    return report


def _count(done: list[dict[str, Any]], victim: str, *hows: str) -> int:
    """How often a victim was struck so."""
    return sum(report["blows"].get(victim, {}).get(how, 0) for report in done for how in hows)


def _counts(done: list[dict[str, Any]], victims: tuple[str, ...]) -> dict[str, int]:
    """Kills and hangs so far, as far as they are wanted."""
    kills = {
        f"{victim}, killed": _count(done, victim, "kill") for victim in victims if victim not in _NEVER_KILLED
    }
    return kills | {f"{victim}, stopped": _count(done, victim, *HANGS) for victim in victims}


def _report(done: list[dict[str, Any]], seed: int, wall_s: float) -> bool:
    """Print and write what was found. Returns whether any of it is wrong."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    table = Table(
        "victim", "blow", "times", "next activity, s (median)", "(max)", "next step, s (median)", "(max)",
        "oldest trained token",
        title=f"Soak, seed {seed}, {machine}",
    )  # fmt: skip
    for kind, victims in KINDS.items():
        ours = [report for report in done if report["kind"] == kind]
        oldest = f"{max(report['staleness'] for report in ours)} (η = {ours[0]['eta']})" if ours else "-"
        for victim, how in product(victims, ("kill", *HANGS)):
            if times := _count(ours, victim, how):
                activity, step = (_times(ours, what, victim, how) for what in ("recovery_s", "next_step_s"))
                table.add_row(victim, how, str(times), *activity, *step, oldest)
    ends = sum((Counter(report["stop_reasons"]) for report in done), Counter[str]())
    totals = {
        "campaigns": len(done),
        "calls_committed": sum(report["calls"] for report in done),
        "calls_lost": sum(report["lost"] for report in done),
        "rollouts_trained_twice": sum(report["trained_twice"] for report in done),
        "too_stale": sum(report["staleness"] > report["eta"] for report in done),
        "findings": [finding for report in done for finding in report["findings"]],
        "rollouts_run_again": sum(report["failed_rollouts"] for report in done),
        "stop_reasons": dict(ends),
        "rollouts_graded": sum(report["graded"] for report in done),
        "graded_after_a_failure": sum(report["judged"] for report in done),
        "misjudged": sum(report["misjudged"] for report in done),
        "outside": {name: sum(report["noted"].get(name, 0) for report in done) for name in _OUTSIDE},
        "training_steps": sum(report["steps"] for report in done),
        "campaign_wall_s": {
            kind: round(sum(each["wall_s"] for each in done if each["kind"] == kind)) for kind in KINDS
        },
        "wall_s": round(wall_s),
    }
    console = Console(width=max(140, Console().width))
    console.print(table)
    console.print(totals)
    write_json(
        Path("benchmarks/out/soak.json"),
        {"seed": seed, "machine": machine, "totals": totals, "campaigns": done},
    )
    return any(totals[name] for name in _WRONG)


_WRONG = (
    "calls_lost",
    "rollouts_trained_twice",
    "too_stale",
    "findings",
    "graded_after_a_failure",
    "misjudged",
)
_OUTSIDE = ("outside_calls", "mislabelled", "amid_updates")
"""Of campaigns against weight agents: calls whose versions were compared with the engine's own ledger,
those that were wrong, and blows in the middle of an update."""


def _times(reports: list[dict[str, Any]], what: str, victim: str, how: str) -> tuple[str, str]:
    """Median and longest."""
    times = [value for report in reports for value in report[what].get(victim, {}).get(how, [])]
    return (f"{statistics.median(times):.1f}", f"{max(times):.1f}") if times else ("-", "-")


if __name__ == "__main__":
    main()
