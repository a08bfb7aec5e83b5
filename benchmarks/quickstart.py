"""The quickstart's claim: three seeds, and a control whose rewards are shuffled. `make bench
NAME=quickstart`.

    python -m benchmarks.quickstart [--ppo] [--fresh]

Each run is `harnessgym train examples/quickstart.toml` from the same shipped weights, or
`examples/quickstart_ppo.toml`. The control permutes the rewards of every batch among its rollouts: same
tasks, same code, nothing to learn. Finished runs of this commit are kept in `runs/bench-quickstart`, so an
interrupted benchmark goes on. Writes `quickstart.json` or `quickstart-ppo.json` into `benchmarks/out`. Exit
status 1 if a seed fails its target or the control gains.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.remembered import commit, remembered
from harnessgym.run_folder import write_json

_ROOT = Path("runs/bench-quickstart")
_ARMS = (
    ("seed 0", 0, False),
    ("seed 1", 1, False),
    ("seed 2", 2, False),
    ("shuffled rewards, seed 0", 0, True),
)


def main() -> None:
    """Run what is left of the arms, then report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quickstart", description=(__doc__ or "").split("\n\n")[2]
    )
    parser.add_argument("--ppo", action="store_true", help="train by PPO instead of GRPO")
    parser.add_argument("--fresh", action="store_true", help="forget finished runs")
    options = parser.parse_args()
    example = "quickstart_ppo" if options.ppo else "quickstart"
    if options.fresh:
        shutil.rmtree(_ROOT / example, ignore_errors=True)
    results = {name: _kept(example, name, seed, shuffle) for name, seed, shuffle in _ARMS}
    Console(width=max(140, Console().width)).print(_table(example, results))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    write_json(
        Path(f"benchmarks/out/{example.replace('_', '-')}.json"), {"machine": machine, "arms": results}
    )
    sys.exit(int(not all(_as_claimed(result) for result in results.values())))


def _kept(example: str, name: str, seed: int, shuffle: bool) -> dict[str, Any]:
    """The summary of a run: an earlier one's if there is one of the same settings and commit."""
    folder = _ROOT / example / name.replace(" ", "-").replace(",", "")
    told = {
        "example": Path(f"examples/{example}.toml").read_text(),
        "seed": seed,
        "shuffle": shuffle,
        "commit": commit(),
    }
    kept = remembered(
        folder.with_suffix(".json"), told, lambda: {"summary": _run(example, folder, seed, shuffle)}
    )
    summary: dict[str, Any] = kept["summary"]
    return summary


def _run(example: str, folder: Path, seed: int, shuffle: bool) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    settings = ["--seed", str(seed), "--trainer.reward_shuffle", str(shuffle).lower()]
    command = [
        sys.executable,
        "-m",
        "harnessgym",
        "train",
        f"examples/{example}.toml",
        "--folder",
        str(folder),
        *settings,
    ]
    subprocess.run(command, check=True)
    result: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return result


def _as_claimed(result: dict[str, Any]) -> bool:
    if result["reward_shuffle"]:
        return bool(result["gain"] < 0.1)
    learnt = result["gain"] >= 0.35 and result["gain_ci95"][0] > 0
    return bool(learnt and result["greedy_before"] <= 0.1 and result["greedy_after"] >= 0.7)


def _table(example: str, results: dict[str, dict[str, Any]]) -> Table:
    sampled = ("temp 1 before", "after", "gain [95 %]")
    table = Table(
        "run",
        *sampled,
        "greedy before",
        "after",
        "rollouts/s",
        "staleness",
        "s",
        "as claimed",
        title=f"examples/{example}.toml, {platform.machine()}, {os.cpu_count()} cores",
    )
    for name, result in results.items():
        low, high = result["gain_ci95"]
        table.add_row(
            name,
            f"{result['success_before']:.3f}",
            f"{result['success_after']:.3f}",
            f"{result['gain']:+.3f} [{low:+.3f}, {high:+.3f}]",
            f"{result['greedy_before']:.3f}",
            f"{result['greedy_after']:.3f}",
            str(result["rollouts_per_s"]),
            f"{result['max_staleness']} (η {result['eta']})",
            f"{sum(result['wall_s'].values()):.0f}",
            "yes" if _as_claimed(result) else "NO",
        )
    return table


if __name__ == "__main__":
    main()
