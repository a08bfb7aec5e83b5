"""Methods against staleness: `make bench NAME=stability`.

    python -m benchmarks.stability [--quick] [--only PART] [--seeds 20] [--lookup-seeds 3] [--plot FILE]
    [--fresh]

All in one process, by the trainers' own update: every rollout was sampled by the policy as it was k updates
ago (as it was at first, while there were fewer). toys: two small tasks, one of them also at four times its
learning rate, k of 0, 1, 8, 32 and 128, 20 seeds, six methods (`methods.py`). quickstart: the shipped policy
on its own task, k of 0, 8 and 32, 3 seeds, three methods. What final reward, collapse and effective sample
size mean was fixed before (`outcome.py`). Intervals are 95 %: Student's t over seeds, of rates Wilson's.
Finished runs are kept in `runs/bench-stability`, so an interrupted benchmark goes on. Writes
`benchmarks/out/stability.json`, and each table as Markdown beside it.
"""

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.remembered import remembered
from benchmarks.stability import lookup_run, toy_run
from benchmarks.stability.lookup_run import Lookup
from benchmarks.stability.methods import METHODS, Method, method
from benchmarks.stability.report import figures, markdown, table
from benchmarks.stability.toys import TOYS, Toy
from harnessgym.run_folder import write_json

_ROOT = Path("runs/bench-stability")
_OUT = Path("benchmarks/out/stability.json")


@dataclass(frozen=True, slots=True)
class Part:
    """One task with everything that is run on it."""

    name: str
    task: Toy | Lookup
    lags: tuple[int, ...]
    methods: tuple[Method, ...]
    seeds: int

    def to_dict(self, lag: int, own: Method, seed: int) -> dict[str, Any]:
        """Every setting that changes what a run gives."""
        update = own.settings(self.task.lr, lag).model_dump(mode="json")
        return {
            "task": asdict(self.task),
            "lag": lag,
            "advantage": own.advantage,
            "update": update,
            "seed": seed,
        }

    def play(self, lag: int, own: Method, seed: int) -> dict[str, Any]:
        """One run."""
        if isinstance(self.task, Toy):
            return toy_run.play(self.task, own, lag, seed)
        return lookup_run.play(self.task, own, lag, seed)


def main() -> None:
    """Run what is left, then report."""
    options = _options()
    torch.set_num_threads(1)
    if options.fresh:
        shutil.rmtree(_ROOT, ignore_errors=True)
    console = Console(width=max(150, Console().width))
    machine = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": 1,
    }
    out: list[dict[str, Any]] = []
    target = _OUT.parent / "quick" / _OUT.name if options.quick else _OUT
    target.parent.mkdir(parents=True, exist_ok=True)
    for parts in _parts(options):
        runs = _runs(parts, _ROOT / "quick" if options.quick else _ROOT, console)
        for part, own in zip(parts, runs, strict=True):
            rows = figures(own)
            title = f"{part.name}, in process: {part.task.steps} steps, {part.seeds} seeds (0 to {part.seeds - 1})"
            console.print(table(title, rows))
            out.append(
                {"name": part.name, "task": asdict(part.task), "seeds": list(range(part.seeds)), "rows": rows}
            )
            write_json(target, {"in_process": True, "machine": machine, "quick": options.quick, "parts": out})
            (target.parent / f"stability-{part.name}.md").write_text(markdown(rows))
    if options.plot:
        from benchmarks.stability.plot import draw

        draw(out, options.plot)
    console.print(f"Machine: {machine}. Written to {target}.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.stability", description=(__doc__ or "").split("\n\n")[2]
    )
    parser.add_argument(
        "--quick", action="store_true", help="few steps, lags and seeds: that it works, no figures"
    )
    parser.add_argument(
        "--only", choices=[*(toy.name for toy in TOYS), "quickstart"], action="append", help="repeatable"
    )
    parser.add_argument("--seeds", type=int, default=20, help="of the toys")
    parser.add_argument("--lookup-seeds", type=int, default=3, help="of the quickstart's task")
    parser.add_argument("--plot", type=Path, help="also draw the figures, as PNG")
    parser.add_argument("--fresh", action="store_true", help="forget finished runs")
    return parser.parse_args()


def _parts(options: argparse.Namespace) -> list[list[Part]]:
    """What is run, in two halves; within each, seed by seed."""
    three = tuple(map(method, ("none", "TIS", "VCPO")))
    if options.quick:
        toys = [Part(toy.name, replace(toy, steps=4), (0, 2), METHODS, 2) for toy in TOYS[:2]]
        lookup = Part("quickstart", Lookup(steps=2, groups=2, eval_tasks=4), (0, 1), three, 1)
    else:
        toys = [Part(toy.name, toy, (0, 1, 8, 32, 128), METHODS, options.seeds) for toy in TOYS]
        lookup = Part("quickstart", Lookup(), (0, 8, 32), three, options.lookup_seeds)
    chosen = [
        [part for part in half if part.name in (options.only or [part.name])] for half in (toys, [lookup])
    ]
    if not any(chosen):
        sys.exit(
            f"--quick has no part {', '.join(options.only)}: it has "
            f"{', '.join(part.name for part in (*toys, lookup))}."
        )
    return [half for half in chosen if half]


def _runs(
    parts: Sequence[Part], root: Path, console: Console
) -> list[dict[tuple[int, str], list[dict[str, Any]]]]:
    """Of each part, what every run gave, kept under `root`: seed by seed, so that an interruption leaves
    whole seeds.
    """
    found: list[dict[tuple[int, str], list[dict[str, Any]]]] = [
        {(lag, own.name): [] for lag, own in product(part.lags, part.methods)} for part in parts
    ]
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(
            "", total=sum(part.seeds * len(runs) for part, runs in zip(parts, found, strict=True))
        )
        for seed in range(max(part.seeds for part in parts)):
            for part, runs in zip(parts, found, strict=True):
                for lag, own in product(part.lags, part.methods) if seed < part.seeds else ():
                    progress.update(bar, description=f"{part.name}, lag {lag}, {own.name}, seed {seed}")
                    path = root / part.name / f"{lag}-{own.name}-{seed}.json"
                    runs[lag, own.name].append(
                        remembered(path, part.to_dict(lag, own, seed), _run(part, lag, own, seed))
                    )
                    progress.advance(bar)
    return found


def _run(part: Part, lag: int, own: Method, seed: int) -> Callable[[], dict[str, Any]]:
    return lambda: part.play(lag, own, seed)


if __name__ == "__main__":
    main()
