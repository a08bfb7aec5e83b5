"""What one look at a run costs, on a small store and on large ones. `make bench NAME=look`.

Fills a store with rollouts of three calls each, most of them long ended, one attempt in ten failed and one
group in ten dropped, and the trainer's metrics with a line for every sixteen; and looks at it as `harnessgym
train` does every second, while sixteen rollouts run. Prints processor milliseconds, which other load on the
machine does not lengthen, and the median of the wall milliseconds.
"""

import argparse
import platform
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from harnessgym.metrics.lines import append
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.store import TraceStore
from harnessgym.supervisor.progress import RunObserver
from tests.support.stored_rollouts import BATCH, CALLS, ENDED_PER_S, filled

_ROOT = Path("benchmarks/out/look")


def main() -> None:
    """Fill, look, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, nargs="+", default=[100, 10_000, 50_000])
    parser.add_argument("--looks", type=int, default=50)
    options = parser.parse_args()
    table = Table(
        "rollouts", "calls", "first look", "look", "wall", title="one look at a run, ms", title_justify="left"
    )
    out: list[dict[str, Any]] = []
    for number in options.rollouts:
        found = measure(number, options.looks)
        out.append({"rollouts": number, **found})
        table.add_row(f"{number:,}", f"{CALLS * number:,}", *(f"{value:.1f}" for value in found.values()))
    Console().print(table)
    write_json(
        Path("benchmarks/out/look.json"),
        {"machine": platform.machine(), "looks": options.looks, "stores": out},
    )
    shutil.rmtree(_ROOT, ignore_errors=True)


def measure(number: int, looks: int) -> dict[str, float]:
    """Milliseconds of the first look at a store of so many rollouts, and of those after it."""
    folder = filled(_ROOT / str(number), number)
    note_steps(folder, number)
    with TraceStore.open(folder.store_url()) as store:
        observer = RunObserver(folder, store)
        first, _ = _look(observer)
        later = [_look(observer) for _ in range(looks)]
    processor, wall = (statistics.median(values) for values in zip(*later, strict=True))
    return {"first_cpu_ms": first, "cpu_ms": processor, "wall_ms": wall}


def _look(observer: RunObserver) -> tuple[float, float]:
    """Processor and wall milliseconds of a look."""
    before, began = time.thread_time(), time.perf_counter()
    observer.look()
    return round(1000 * (time.thread_time() - before), 3), round(1000 * (time.perf_counter() - began), 3)


def note_steps(folder: RunFolder, number: int) -> None:
    """What the trainer notes of the steps on so many rollouts."""
    usual, now = {"reward": 0.5, "staleness": 1, "wait_s": 0.6, "step_s": 1.0}, time.time()
    for step in range(1, number // BATCH + 1):
        at = now - (number - BATCH * step) / ENDED_PER_S
        append(folder.metrics_path, {"step": step, "time": at, **usual, "dropped_groups": step % 3})


if __name__ == "__main__":
    main()
