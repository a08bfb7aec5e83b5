"""`python -m environments.swe.plans`: plans how tasks are judged by value, and writes that to the manifests.

The tests of a package run on it without any fault, once for all its tasks. Then those that run a task's
faulty functions run with the fault, which tells which of them show it. At last each task without its solution
is judged with several seeds: a task whose fault no fresh input shows is reported, and should be dropped.
"""

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from environments.swe.building import task_of
from environments.swe.manifest import FOLDER, PackageManifest, read, write
from environments.swe.package import package, packages
from environments.swe.tree import tree
from harnessgym.errors import HarnessGymError, SandboxError
from harnessgym.grading.by_value.calls import planned
from harnessgym.grading.by_value.judge import sources_of
from harnessgym.grading.by_value.observation import differences, stable
from harnessgym.grading.by_value.plan import (
    GoldObservations,
    JudgementPlan,
    TestFiles,
    files_of,
    observe,
    observe_gold,
    planned_tests,
    prepared,
    record_calls,
    variant_job,
)
from harnessgym.grading.differential.functions import changed, differing, functions_of
from harnessgym.grading.differential.inputs import FunctionCall
from harnessgym.grading.upload import holding
from harnessgym.grading.verifier import Opener
from harnessgym.provisioning import equipment_of
from harnessgym.sandbox import SandboxBackend
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.task import Task


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """The plan of one task, and how well it tells the task's fault from the solution."""

    plan: JudgementPlan
    differences: tuple[int, ...]
    """For each seed, the tests and calls that differ without the solution."""


class PackagePlanner:
    """Plans the tasks of one package."""

    def __init__(self, backend: SandboxBackend, folder: Path, seeds: int) -> None:
        """`folder` is an empty one for workspaces."""
        self._backend = backend
        self._folder = folder
        self._seeds = seeds
        self._files: TestFiles
        self._gold: GoldObservations
        self._calls: Mapping[tuple[str, str], Sequence[FunctionCall]] = {}

    async def begin(self, task: Task) -> None:
        """Runs the tests without a fault. `task` is any task of the package."""
        assert task.solution is not None
        gold = self._folder / "gold"
        _lay(gold, {**task.files, **task.solution.files})
        shutil.copytree(gold, self._folder / "prepared")
        _lay(self._folder / "prepared", prepared(gold))
        self._files = files_of(task, gold, {})
        openers = [self._holding(task, name) for name in ("gold", "prepared")]
        self._gold = await observe_gold(self._files, *openers)
        code = [function for file in prepared(gold) for function in functions_of(gold, file)]
        self._calls = await record_calls(self._files, code, openers[0])

    async def plan(self, task: Task) -> PlannedTask:
        """The plan of a task."""
        start = self._folder / task.id
        gold = self._folder / "gold"
        _lay(start, task.files)
        opened = self._holding(task, task.id)
        tests = await planned_tests(self._files, changed(gold, start), self._gold, opened)
        plan = JudgementPlan(tests, planned(differing(gold, start).functions, self._calls))
        counts = [await self._differences(task, plan, seed) for seed in range(self._seeds)]
        shutil.rmtree(start)
        return PlannedTask(plan, tuple(counts))

    async def _differences(self, task: Task, plan: JudgementPlan, seed: int) -> int:
        """How many tests and calls with the inputs of a seed tell the faulty package from the original."""
        draw = random.Random(f"{task.id} {seed}")
        job = variant_job(self._files, sources_of(self._files, plan), plan, draw)
        openers = [self._holding(task, name) for name in ("gold", "gold", task.id)]
        first, again, start = [
            await observe(opened, job, is_gold=number < 2) for number, opened in enumerate(openers)
        ]
        return len(list(differences(stable(first, again), start.tests)))

    def _holding(self, task: Task, name: str) -> Opener:
        fresh = partial(self._backend.open, task.limits, equipment_of(task, grades=True))
        return holding(self._folder / name, fresh)


def _lay(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8", newline="")


def command(
    package: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this package. Repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Judgements of each task without its solution.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder of the manifests.")] = FOLDER,
) -> None:
    """Plan how tasks are judged by value, and prove that fresh inputs show their faults."""
    console = Console(stderr=True)
    try:
        if not asyncio.run(_plan(package or list(packages()), seeds, out, console)):
            raise typer.Exit(1)
    except HarnessGymError as error:
        console.print(str(error), style="red", soft_wrap=True, markup=False)
        raise typer.Exit(2) from None


async def _plan(names: list[str], seeds: int, out: Path, console: Console) -> bool:
    """Whether every fault was shown with every seed."""
    problem = Bubblewrap.unavailable()
    if problem is not None:
        raise SandboxError(problem)
    columns = (TextColumn("{task.description:14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = True
    with (
        tempfile.TemporaryDirectory(prefix="harnessgym-swe-") as folder,
        Progress(*columns, console=console) as bars,
    ):
        async with Bubblewrap(BubblewrapSettings(workspace_root=Path(folder) / "sandboxes")) as backend:
            for name in names:
                manifest = read(package(name), out)
                bar = bars.add_task(name, total=len(manifest.entries))
                planner = PackagePlanner(backend, Path(folder) / name, seeds)
                weak = await _package(planner, manifest, out, partial(bars.advance, bar))
                for task, counts in weak.items():
                    shown = False
                    console.print(f"{task}: differences by seed {counts}: too few", markup=False)
    return shown


async def _package(
    planner: PackagePlanner, manifest: PackageManifest, out: Path, advance: Callable[[], None]
) -> dict[str, tuple[int, ...]]:
    """Plans the tasks of a manifest and writes it. Returns the tasks whose fault some seed does not show."""
    package_tree = tree(manifest.package)
    tasks = [task_of(manifest, entry, package_tree) for entry in manifest.entries]
    await planner.begin(tasks[0])
    entries = []
    weak = {}
    for entry, task in zip(manifest.entries, tasks, strict=True):
        made = await planner.plan(task)
        entries.append(replace(entry, plan=made.plan))
        if min(made.differences) < 1:
            weak[task.id] = made.differences
        advance()
    write(replace(manifest, entries=tuple(entries)), out)
    return weak


if __name__ == "__main__":
    typer.run(command)
