"""The quickstart's claim: three seeds, and a control whose rewards are shuffled. `make bench NAME=quickstart`.

Each run is `harnessgym train examples/quickstart.toml` from the same shipped weights. The control permutes the rewards of
every batch among its rollouts: same tasks, same code, nothing to learn. Exit status 1 if a seed fails its target or
the control gains.
"""

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

from harnessgym.run_folder import write_json

_ROOT = Path("runs/bench-quickstart")
_ARMS = (("seed 0", 0, False), ("seed 1", 1, False), ("seed 2", 2, False), ("shuffled rewards, seed 0", 0, True))


def main() -> None:
    """Run all arms and report."""
    shutil.rmtree(_ROOT, ignore_errors=True)
    results = {name: _run(name, seed, shuffle) for name, seed, shuffle in _ARMS}
    Console().print(_table(results))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    write_json(Path("benchmarks/out/quickstart.json"), {"machine": machine, "arms": results})
    sys.exit(int(not all(_as_claimed(result) for result in results.values())))


def _run(name: str, seed: int, shuffle: bool) -> dict[str, Any]:
    folder = _ROOT / name.replace(" ", "-").replace(",", "")
    settings = ["--seed", str(seed), "--trainer.reward_shuffle", str(shuffle).lower()]
    command = [sys.executable, "-m", "harnessgym", "train", "examples/quickstart.toml", "--folder", str(folder), *settings]
    subprocess.run(command, check=True)
    result: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return result


def _as_claimed(result: dict[str, Any]) -> bool:
    if result["reward_shuffle"]:
        return bool(result["gain"] < 0.1)
    learnt = result["gain"] >= 0.35 and result["gain_ci95"][0] > 0
    return bool(learnt and result["greedy_before"] <= 0.1 and result["greedy_after"] >= 0.7)


def _table(results: dict[str, dict[str, Any]]) -> Table:
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
        title=f"Quickstart, {platform.machine()}, {os.cpu_count()} cores",
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
