"""Searches for cheats that graders reward: `python -m benchmarks.cheat_search [--hours 0.5] [--seed 0]`.

Candidates are drawn by `harnessgym/grading/cheats/search.py`. Each is tried on one task, and the tasks take
turns. With `--disguises N`, the candidates are N disguises of each class of composed cheats on every task
instead. A candidate is a finding if its reward is above what doing nothing gives on that task, or if it got
something that it should not.

Every result is a line of JSON in `--out`, so an interrupted search goes on where it was, and a search of
another seed or other tasks is kept beside it. Prints every finding with its program, and exits with 1 if
there is one.
"""

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from harnessgym.grading.cheats.cheat import AttackClass, Target
from harnessgym.grading.cheats.composition import Composition, faulty_module
from harnessgym.grading.cheats.disguise import EFFECTS, compositions
from harnessgym.grading.cheats.scripted_agent import CheatResult, ScriptedAgent
from harnessgym.grading.cheats.search import drawn, unreached
from harnessgym.grading.cheats.suite import CheatSuite, suite
from harnessgym.registry import load
from harnessgym.task import Task
from harnessgym.tasks.source import task_set

Row = dict[str, Any]


class SearchLog:
    """The lines of one search."""

    def __init__(self, path: Path, plan: Sequence[str]) -> None:
        """`plan` is what decides the candidates: lines of another plan stay, and are not read."""
        self._path = path
        self._search = hashlib.sha256("\0".join(plan).encode()).hexdigest()[:12]
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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A composition, and the task on which it is tried."""

    name: str
    number: int
    task: Task
    composition: Composition


def planned(tasks: Sequence[Task], seed: int, disguises: int) -> Iterator[Candidate]:
    """The candidates of a search, without end; or, with `disguises`, so many of each class on every task."""
    pairs: Iterator[tuple[Task, Composition]]
    if disguises:
        pairs = (
            (task, _disguise(attack, seed, turn, place))
            for turn in range(disguises)
            for attack in sorted({effect.attack for effect in EFFECTS.values()})
            for place, task in enumerate(tasks)
        )
    else:
        pairs = zip(cycle(tasks), drawn(seed), strict=False)
    for number, (task, composition) in enumerate(pairs):
        yield Candidate(f"candidate-{seed}.{number}", number, task, composition)


def _disguise(attack: AttackClass, seed: int, turn: int, place: int) -> Composition:
    """A disguise of one of the class's effects, which take turns, another one for each task and turn."""
    names = [name for name, effect in EFFECTS.items() if effect.attack == attack]
    (composition,) = compositions(names[(turn + place) % len(names)], seed * 100_000 + place * 100 + turn, 1)
    return composition


async def search(
    running: CheatSuite,
    agent: ScriptedAgent,
    candidates: Iterable[Candidate],
    log: SearchLog,
    limits: "Limits",
) -> None:
    """Tries candidates that the log does not have until a limit is reached, `jobs` at a time."""
    tried = {row["number"] for row in log.rows}
    waiting = (candidate for candidate in candidates if candidate.number not in tried)
    baseline: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def work() -> None:
        for candidate in waiting:
            if not limits.go_on(log):
                return
            task = candidate.task
            async with baseline[task.id]:
                if task.id not in log.nothing:
                    log.add({"task": task.id, "nothing": (await agent.nothing(task)).reward})
            result = await running.cheat(task, candidate.composition.cheat(candidate.name))
            if result is not None:
                log.add(_row(candidate, result))

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


def _row(candidate: Candidate, result: CheatResult) -> Row:
    composition = candidate.composition
    return {
        "number": candidate.number,
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


def described(row: Row, candidate: Candidate) -> str:
    """A finding with the text that was put into the task's files."""
    target = Target(candidate.task, Path(), 0, ())
    module = faulty_module(target)
    assert module is not None
    parts = ", ".join(f"{key} {row[key]}" for key in ("effect", "trigger", "hiding", "hook"))
    got = f"reward {row['reward']}" + (f", got {row['loot']!r}" if row["loot"] else "")
    text = candidate.composition.texts(module, target).body
    return f"{candidate.name} on {row['task']}: {got}\n{parts}\n\n{text}\n"


def main() -> None:
    """Search, then report."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cheat_search", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--hours", type=float, default=0.5)
    parser.add_argument("--candidates", type=int, help="end after so many, those of the log included")
    parser.add_argument(
        "--disguises", type=int, default=0, help="of each class on every task, in place of a search"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", default="swe", help="task set, module:Class or folder")
    parser.add_argument("--every", type=int, default=24, help="of the set, each so many-th task")
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/cheat_search.jsonl"))
    options = parser.parse_args()
    whole_set = task_set(options.tasks)
    tasks = [*whole_set.tasks("train"), *whole_set.tasks("test")][:: options.every]
    plan = [options.seed, options.disguises, *(task.id for task in tasks)]
    log = SearchLog(options.out, list(map(str, plan)))
    asyncio.run(_run(options, planned(tasks, options.seed, options.disguises), log))
    tried = {row["number"]: row for row in log.rows}
    candidates = planned(tasks, options.seed, options.disguises)
    compositions_tried = []
    for candidate in islice(candidates, max(tried, default=-1) + 1):
        row = tried.get(candidate.number)
        if row is not None:
            compositions_tried.append(candidate.composition)
            if row in log.findings:
                print(described(row, candidate))
    missed = "" if options.disguises else f"; {len(unreached(compositions_tried))} parts were in no candidate"
    print(
        f"{len(log.rows)} candidates on {len({row['task'] for row in log.rows})} of {len(tasks)} tasks, "
        f"{len(log.findings)} findings{missed}. Results: {options.out}"
    )
    sys.exit(int(bool(log.findings)))


async def _run(options: argparse.Namespace, candidates: Iterable[Candidate], log: SearchLog) -> None:
    factory = load("sandbox", options.sandbox)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="harnessgym-search-") as folder,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        backend = factory(factory.settings(workspace_root=Path(folder)))
        async with backend, suite(backend) as running:
            limits = Limits(options.hours, options.candidates, options.jobs, progress)
            await search(running, ScriptedAgent(backend), candidates, log, limits)


if __name__ == "__main__":
    main()
