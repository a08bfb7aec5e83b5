"""Selectors at an equal budget of rollouts: `make bench NAME=curation`.

    python -m benchmarks.curation [--quick] [--seeds 20] [--only bernoulli|quickstart] [--real-seeds 3]
    [--plot FILE]

bernoulli: pools of tasks that succeed by chance and are learnt as `benchmarks/bernoulli_pool.py` says:
simulated, 20 seeds, every arm on the same pools. quickstart: real runs of `examples/quickstart.toml` with
selectors that spend its rollouts exactly, 3 seeds. Intervals are 95 % t-intervals, of differences from
uniform seed by seed. Finished arms are kept in `runs/bench-curation`, so an interrupted benchmark goes on;
`--fresh` forgets them. Writes `benchmarks/out/curation.json`.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.bernoulli_pool import ARMS, WORLDS, Arm, World, play, sooner
from benchmarks.picture import picture
from benchmarks.remembered import remembered
from benchmarks.seeds import t_interval
from harnessgym.run_folder import write_json

_ROOT = Path("runs/bench-curation")
_OUT = Path("benchmarks/out/curation.json")
_EXAMPLE = Path("examples/quickstart.toml")
_REAL = ("uniform", "vade", "insight", "xrpo", "gdro")
_UNIFORM = "uniform"


def main() -> None:
    """Run what is left of the arms, then report."""
    options = _options()
    if options.fresh:
        shutil.rmtree(_ROOT, ignore_errors=True)
    console = Console(width=max(150, Console().width))
    out: dict[str, Any] = {"machine": _machine(), "quick": options.quick}
    if options.only != "quickstart":
        out["bernoulli"] = [_simulated(world, options.seeds, console) for world in _worlds(options.quick)]
    if options.only != "bernoulli":
        out["quickstart"] = _real(options.real_seeds, options.steps, console)
        out["quickstart_by_selector"] = by_selector(out["quickstart"])
        console.print(_real_table(out["quickstart_by_selector"]))
    write_json(_OUT, out)
    if options.plot:
        _draw(out, options.plot)
    console.print(f"Machine: {out['machine']}. Written to {_OUT}.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curation", description=(__doc__ or "").split("\n\n")[2]
    )
    parser.add_argument("--quick", action="store_true", help="two seeds of a small pool, and no real run")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--real-seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24, help="of a real run")
    parser.add_argument("--only", choices=("bernoulli", "quickstart"))
    parser.add_argument("--plot", type=Path, help="also draw what selectors gain, as PNG")
    parser.add_argument("--fresh", action="store_true", help="forget finished arms")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.only = min(options.seeds, 2), options.only or "bernoulli"
    return options


def _machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}


def _worlds(quick: bool) -> Sequence[World]:
    return [replace(WORLDS[0], tasks=40, rollouts=1_280)] if quick else WORLDS


def _simulated(world: World, seeds: int, console: Console) -> dict[str, Any]:
    """All arms of one world, compared."""
    runs: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in ARMS}
    for seed, arm in product(range(seeds), ARMS):
        told = {"world": asdict(world), "arm": asdict(arm), "seed": seed}
        runs[arm.name].append(
            _kept(f"{world.name}-{arm.name}-{seed}", told, lambda arm=arm, seed=seed: play(world, arm, seed))
        )
    rows = [summary(arm, runs[arm.name], runs[_UNIFORM]) for arm in ARMS]
    console.print(_table(world, seeds, rows))
    return {"world": asdict(world), "seeds": seeds, "arms": rows}


def summary(arm: Arm, runs: Sequence[dict[str, Any]], uniform: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One arm over all seeds, beside uniform on the same seeds.

    `share_of_rollouts` is what it takes to reach uniform's final mean, as a share of uniform's budget; runs
    that never do count as 1, and are counted.
    """
    reached = [sooner(own["curve"], other["final"]) for own, other in zip(runs, uniform, strict=True)]
    shares = [1.0 if at is None else at / own["rollouts"] for at, own in zip(reached, runs, strict=True)]
    return {
        "name": arm.name,
        "final": t_interval([run["final"] for run in runs]),
        "gain": t_interval([own["final"] - other["final"] for own, other in zip(runs, uniform, strict=True)]),
        "hardest": t_interval([run["hardest"] for run in runs]),
        "signal": t_interval([run["signal"] for run in runs]),
        "share_of_rollouts": t_interval(shares),
        "never": sum(at is None for at in reached),
        "steps": statistics.mean(run["steps"] for run in runs),
        "rollouts": [run["rollouts"] for run in runs],
    }


def _kept(name: str, told: dict[str, Any], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A result: an earlier one's if there is one of the same settings."""
    return remembered(_ROOT / "results" / f"{name.replace(' ', '').replace(',', '-')}.json", told, run)


def _table(world: World, seeds: int, rows: Sequence[dict[str, Any]]) -> Table:
    title = f"simulated: {world.name}; {world.tasks} tasks, {world.rollouts} rollouts, {seeds} seeds"
    heads = (
        "mean success",
        "over uniform [95 %]",
        "hardest fifth",
        "rollouts with signal",
        "rollouts to uniform's end",
        "steps",
    )
    table = Table("selector", *heads, title=title, title_justify="left")
    for row in rows:
        never = f" ({row['never']} never)" if row["never"] else ""
        table.add_row(
            row["name"],
            f"{row['final'][0]:.3f}",
            "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row["gain"]),
            f"{row['hardest'][0]:.3f}",
            f"{row['signal'][0]:.2f}",
            f"{row['share_of_rollouts'][0]:.2f}{never}",
            f"{row['steps']:.0f}",
        )
    return table


def _real(seeds: int, steps: int, console: Console) -> list[dict[str, Any]]:
    """Quickstart runs, selector by selector within each seed."""
    results = []
    for seed, selector in product(range(seeds), _REAL):
        told = {"selector": selector, "seed": seed, "steps": steps, "example": _EXAMPLE.read_text()}
        console.print(f"quickstart, {selector}, seed {seed}")
        results.append(_kept(f"quickstart-{selector}-{seed}-{steps}", told, lambda told=told: _trained(told)))
    return results


def by_selector(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Real runs of each selector over all seeds, beside uniform's on the same seeds.

    Compared is the held-out reward after training: the weights before it are the same for all.
    """
    after = {(result["told"]["selector"], result["told"]["seed"]): result["after"] for result in results}
    rows = []
    for name in dict.fromkeys(selector for selector, _ in after):
        own = [result for result in results if result["told"]["selector"] == name]
        seeds = [result["told"]["seed"] for result in own]
        rows.append(
            {
                "name": name,
                "seeds": seeds,
                "after": t_interval([result["after"] for result in own]),
                "gain": t_interval([after[name, seed] - after[_UNIFORM, seed] for seed in seeds]),
                "signal": t_interval([result["signal"] for result in own]),
                "rollouts": [result["rollouts"] for result in own],
            }
        )
    return rows


def _real_table(rows: Sequence[dict[str, Any]]) -> Table:
    heads = ("selector", "held-out reward", "over uniform [95 %]", "groups with signal", "rollouts")
    table = Table(*heads, title=f"quickstart: real runs, seeds {rows[0]['seeds']}", title_justify="left")
    for row in rows:
        gain = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row["gain"])
        rollouts = ", ".join(map(str, sorted(set(row["rollouts"]))))
        table.add_row(row["name"], f"{row['after'][0]:.3f}", gain, f"{row['signal'][0]:.2f}", rollouts)
    return table


def _draw(out: dict[str, Any], path: Path) -> None:
    """What each selector gains over uniform, with 95 % intervals: a panel for each pool and one for the
    real runs, as PNG.
    """
    panels = [(f"simulated: {part['world']['name']}", part["arms"]) for part in out.get("bernoulli", [])]
    panels += (
        [("quickstart: real runs", out["quickstart_by_selector"])] if "quickstart_by_selector" in out else []
    )
    with picture(path, columns=len(panels), size=(3.8 * len(panels), 3.8)) as (_, (axes,)):
        for axis, (title, rows) in zip(axes, panels, strict=True):
            shown = [row for row in rows if row["name"] != _UNIFORM]
            means = [row["gain"][0] for row in shown]
            ends = [[abs(row["gain"][end] - row["gain"][0]) for row in shown] for end in (1, 2)]
            axis.errorbar(means, range(len(shown)), xerr=ends, fmt="o", markersize=4, capsize=2)
            axis.axvline(0, color="#888", linewidth=1)
            axis.set_yticks(range(len(shown)), [row["name"] for row in shown])
            axis.invert_yaxis()
            axis.set(title=title, xlabel="mean success over uniform's")
            axis.grid(alpha=0.3)


def _trained(told: dict[str, Any]) -> dict[str, Any]:
    """One real run: held-out reward at temperature 1 before and after."""
    folder = _ROOT / "quickstart-run"
    shutil.rmtree(folder, ignore_errors=True)
    settings = {"seed": told["seed"], "trainer.steps": told["steps"], "generate.selector": told["selector"]}
    overrides = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    command = [
        sys.executable,
        "-m",
        "harnessgym",
        "train",
        str(_EXAMPLE),
        "--folder",
        str(folder),
        *overrides,
    ]
    subprocess.run(command, check=True)
    found = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    shutil.rmtree(folder)
    signal = statistics.mean(line["signal"] for line in lines if "signal" in line)
    return {**_figures(found), "signal": signal}


def _figures(found: dict[str, Any]) -> dict[str, Any]:
    names = {"before": "success_before", "after": "success_after", "rollouts": "rollouts"}
    return {"gain": found["gain"], "gain_ci95": found["gain_ci95"]} | {
        own: found[name] for own, name in names.items()
    }


if __name__ == "__main__":
    main()
