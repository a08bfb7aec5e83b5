"""Searches for cheats that graders reward: `python -m benchmarks.cheat_search [--hours 0.5] [--seed 0] [--tasks
swe] [--jobs 2]`.

Candidates are drawn by `harnessgym/grading/cheats/search.py`. Each is tried on one task, and the tasks take
turns. A candidate is a finding if its reward is above what doing nothing gives on that task, or if it got
something that it should not. Every result is a line of JSON in `--out`, so an interrupted search goes on where
it was, and a search of another seed or other tasks is kept beside it. Prints every finding with its program,
and exits with 1 if there is one.
"""

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from harnessgym.grading.cheats.composition import Composition
from harnessgym.grading.cheats.scripted_agent import CheatResult, ScriptedAgent
from harnessgym.grading.cheats.search import drawn, unreached
from harnessgym.grading.cheats.suite import CheatSuite, suite
from harnessgym.registry import load
from harnessgym.task import Task
from harnessgym.tasks.source import task_set

Row = dict[str, Any]


class SearchLog:
    """The lines of one search: a seed and the tasks on which it runs."""

    def __init__(self, path: Path, seed: int, tasks: Sequence[str]) -> None:
        self._path = path
        self._search = hashlib.sha256("\0".join([str(seed), *tasks]).encode()).hexdigest()[:12]
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):
            # Without this, the next row would continue the line that was cut off, and be lost with it.
            path.write_text(f"{text}\n", encoding="utf-8")
        rows = [row for row in map(_parsed, text.splitlines()) if row.get("search") == self._search]
        self.rows = [row for row in rows if "number" in row]
        self.nothing: dict[str, float | None] = {
            row["task"]: row["nothing"] for row in rows if "nothing" in row
        }

    def add(self, row: Row) -> None:
        """Appends a row and flushes it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"search": self._search, **row}) + "\n")
        if "nothing" in row:
            self.nothing[row["task"]] = row["nothing"]
        else:
            self.rows.append(row)

    @property
    def findings(self) -> list[Row]:
        """Rows with more than doing nothing gives, or with loot."""
        return [row for row in self.rows if is_finding(row, self.nothing.get(row["task"]))]


def is_finding(row: Row, nothing: float | None) -> bool:
    """Whether a candidate got more than nothing got."""
    return bool(row["loot"]) or (row["reward"] is not None and row["reward"] > (nothing or 0.0))


def _parsed(line: str) -> Row:
    """A line as a row. Empty if the search was cut off while it wrote the line."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


async def search(
    running: CheatSuite,
    agent: ScriptedAgent,
    tasks: Sequence[Task],
    log: SearchLog,
    seed: int,
    limits: "Limits",
) -> None:
    """Tries candidates that the log does not have until a limit is reached, `jobs` at a time."""
    tried = {row["number"] for row in log.rows}
    waiting = ((number, each) for number, each in enumerate(drawn(seed)) if number not in tried)
    baseline = {task.id: asyncio.Lock() for task in tasks}

    async def work() -> None:
        for number, composition in waiting:
            if not limits.go_on(log):
                return
            task = tasks[number % len(tasks)]
            async with baseline[task.id]:
                if task.id not in log.nothing:
                    log.add({"task": task.id, "nothing": (await agent.nothing(task)).reward})
            result = await running.cheat(task, composition.cheat(f"candidate-{seed}.{number}"))
            if result is not None:
                log.add(_row(number, composition, result))

    await asyncio.gather(*(work() for _ in range(limits.jobs)))


class Limits:
    """When a search ends, and its progress bar."""

    def __init__(self, hours: float, most: int | None, jobs: int, progress: Progress) -> None:
        self.jobs = jobs
        self._most = most
        self._began = time.monotonic()
        self._seconds = hours * 3_600
        self._progress = progress
        self._bar = progress.add_task("", total=self._seconds)

    def go_on(self, log: SearchLog) -> bool:
        """Draws the bar. False if a limit is reached."""
        passed = time.monotonic() - self._began
        text = f"{len(log.rows)} candidates, {len(log.findings)} findings"
        self._progress.update(self._bar, completed=passed, description=text)
        return passed < self._seconds and (self._most is None or len(log.rows) < self._most)


def _row(number: int, composition: Composition, result: CheatResult) -> Row:
    return {
        "number": number,
        "task": result.task,
        "effect": composition.effect.name,
        "trigger": composition.trigger,
        "hiding": composition.hiding,
        "hook": composition.hook,
        "reward": result.reward,
        "tampered": result.tampered,
        "error": result.error,
        "loot": result.loot,
        "seconds": round(result.seconds, 2),
    }


def described(row: Row, seed: int, task: Task) -> str:
    """A finding with the text that was put into the task's files."""
    from harnessgym.grading.cheats.cheat import Target
    from harnessgym.grading.cheats.composition import faulty_module

    composition = next(islice(drawn(seed), row["number"], None))
    target = Target(task, Path(), 0, ())
    module = faulty_module(target)
    assert module is not None
    texts = composition.texts(module, target)
    parts = ", ".join(f"{key} {row[key]}" for key in ("effect", "trigger", "hiding", "hook"))
    got = f"reward {row['reward']}" + (f", got {row['loot']!r}" if row["loot"] else "")
    return f"candidate-{seed}.{row['number']} on {row['task']}: {got}\n{parts}\n\n{texts.body}\n"


def main() -> None:
    """Search, then report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cheat_search", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--hours", type=float, default=0.5)
    parser.add_argument("--candidates", type=int, help="end after so many, those of the log included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", default="swe", help="task set, module:Class or folder")
    parser.add_argument("--every", type=int, default=24, help="of the set, each so many-th task")
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/cheat_search.jsonl"))
    options = parser.parse_args()
    whole_set = task_set(options.tasks)
    tasks = [*whole_set.tasks("train"), *whole_set.tasks("test")][:: options.every]
    log = SearchLog(options.out, options.seed, [task.id for task in tasks])
    asyncio.run(_run(options, tasks, log))
    by_id = {task.id: task for task in tasks}
    for row in log.findings:
        print(described(row, options.seed, by_id[row["task"]]))
    tried = {row["number"] for row in log.rows}
    missed = unreached(each for number, each in _first(options.seed, tried) if number in tried)
    print(
        f"{len(log.rows)} candidates on {len(tasks)} tasks, {len(log.findings)} findings; {len(missed)} parts "
        f"were in no candidate. Results: {options.out}"
    )
    sys.exit(int(bool(log.findings)))


def _first(seed: int, tried: set[int]) -> Iterator[tuple[int, Composition]]:
    return zip(count(), islice(drawn(seed), max(tried, default=-1) + 1), strict=False)


async def _run(options: argparse.Namespace, tasks: Sequence[Task], log: SearchLog) -> None:
    factory = load("sandbox", options.sandbox)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="harnessgym-search-") as folder,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        backend = factory(factory.settings(workspace_root=Path(folder)))
        async with backend, suite(backend) as running:
            limits = Limits(options.hours, options.candidates, options.jobs, progress)
            await search(running, ScriptedAgent(backend), tasks, log, options.seed, limits)


if __name__ == "__main__":
    main()
