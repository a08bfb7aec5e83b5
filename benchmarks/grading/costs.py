"""Grades the gold solution of a task in several ways, and measures what each costs."""

import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from harnessgym.errors import TaskError
from harnessgym.grading.artifacts import collected_artifacts
from harnessgym.grading.by_value.judge import KEY, ByValueJudge
from harnessgym.grading.by_value.plan import observe, variant_job
from harnessgym.grading.cheats.scripted_agent import ScriptedAgent
from harnessgym.grading.differential.differential_test import opinion_on
from harnessgym.grading.grade import verdict
from harnessgym.grading.upload import holding
from harnessgym.task import Grade, Task
from harnessgym.task_setup.workspace_setup import solve

T = TypeVar("T")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Samples:
    """Wall and processor seconds of one thing that was done several times."""

    wall_s: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)

    async def time(self, once: Callable[[], Awaitable[T]]) -> T:
        """Adds a sample."""
        wall, processor = time.perf_counter(), processor_seconds()
        result = await once()
        self.wall_s.append(time.perf_counter() - wall)
        self.processor_s.append(processor_seconds() - processor)
        return result

    @property
    def median_s(self) -> float:
        """Median wall seconds."""
        return statistics.median(self.wall_s)

    @property
    def median_processor_s(self) -> float:
        """Median processor seconds."""
        return statistics.median(self.processor_s)


@dataclass(slots=True)
class GradingCost:
    """What grading the gold solution of one task costs."""

    task: str
    package: str
    plan: str
    """`shipped` with the task, or `made` before the measurements."""
    preparation: Samples = field(default_factory=Samples)
    """Gold's workspace, and the plan if none is shipped. Once for a task and process."""
    pytest: Samples = field(default_factory=Samples)
    """A verdict by the task's `pytest` check alone."""
    by_value: Samples = field(default_factory=Samples)
    """A verdict by the same check, and by value."""
    opinion: Samples = field(default_factory=Samples)
    """A second opinion that is stored as evidence, without the verdict before it."""
    drawing: Samples = field(default_factory=Samples)
    gold: Samples = field(default_factory=Samples)
    start: Samples = field(default_factory=Samples)
    candidate: Samples = field(default_factory=Samples)
    """Stages of judging by value, each alone: in a judgement the three runs overlap. `start` is that
    of the initial files, which get the first inputs only."""
    tests: list[int] = field(default_factory=list)
    assertions: list[int] = field(default_factory=list)
    """How many were compared at each judgement."""
    faults: list[str] = field(default_factory=list)
    """Verdicts that are not reward 1: the candidate is the solution."""

    @property
    def ratio(self) -> float:
        """Wall time of a verdict by value as a multiple of one by `pytest` alone."""
        return self.by_value.median_s / self.pytest.median_s

    def to_dict(self) -> dict[str, Any]:
        """As JSON values, with every sample."""
        samples = ("preparation", "pytest", "by_value", "opinion", "drawing", "gold", "start", "candidate")
        return {
            **{name: getattr(self, name) for name in ("task", "package", "plan", "tests", "assertions")},
            **{name: _rounded(getattr(self, name)) for name in samples},
            "ratio": round(self.ratio, 3),
            "faults": self.faults,
        }


def sample(tasks: Sequence[Task], seed: int, packages: Collection[str] = ()) -> list[Task]:
    """One task of each of these packages, or of all, drawn by the seed."""
    by_package: dict[str, list[Task]] = {}
    for task in tasks:
        by_package.setdefault(package_of(task), []).append(task)
    chosen = sorted(packages or by_package)
    return [random.Random(f"{seed} {name}").choice(by_package[name]) for name in chosen]


def package_of(task: Task) -> str:
    """The package that a task of the `swe` set is about."""
    return task.id.rpartition("/")[2].rpartition("-")[0]


async def measure(task: Task, agent: ScriptedAgent, folder: Path, repeats: int, seed: int) -> GradingCost:
    """Solves the task once, and grades the exported workspace again and again, each way in turn.

    Raises SandboxError when a sandbox failed, TaskError when the task cannot be judged by value.
    """
    metadata = {key: value for key, value in task.metadata.items() if key != KEY}
    plain = replace(task, metadata=metadata)
    valued = replace(task, metadata={**metadata, KEY: task.metadata.get(KEY, {})})
    plan = "shipped" if "tests" in valued.metadata[KEY] else "made"
    cost = GradingCost(task.id, package_of(task), plan)
    fresh = agent.fresh(task)
    judge = ByValueJudge(folder)
    async with agent.furnished(task) as sandbox:
        await solve(task, sandbox)
        async with collected_artifacts(task, sandbox, folder) as evidence:
            reference = await cost.preparation.time(lambda: judge.reference(valued, fresh))
            if reference.plan.why:
                raise TaskError(f"Task {task.id!r} cannot be judged by value: {reference.plan.why}")
            # Reads modules and the machine's files once, for both ways alike.
            await verdict(valued, evidence, None, fresh, by_value=judge)
            open_candidate = holding(evidence.folder, fresh)
            for number in range(repeats):
                for samples, asked in ((cost.pytest, plain), (cost.by_value, valued)):
                    grade = await samples.time(
                        lambda asked=asked: verdict(asked, evidence, None, fresh, by_value=judge)
                    )
                    _note(grade, cost)

                async def draw(number: int = number) -> dict[str, Any]:
                    draw = random.Random(f"{seed} {number}")
                    return variant_job(reference.files, reference.sources, reference.plan, draw)

                job = await cost.drawing.time(draw)
                runs = reference.runs(job, fresh)
                await cost.gold.time(lambda runs=runs: runs.run("gold"))
                await cost.start.time(lambda runs=runs: runs.run("control"))
                await cost.candidate.time(lambda job=job: observe(open_candidate, job, is_gold=False))
            await cost.opinion.time(lambda: opinion_on(task, evidence.folder, fresh))
    return cost


def _note(grade: Grade, cost: GradingCost) -> None:
    if grade.rewards["reward"] != 1.0:
        cost.faults.append(f"{grade.rewards} {grade.tampered or ''} {grade.evidence.get(KEY, '')}")
    if KEY in grade.evidence:
        cost.tests.append(grade.evidence[KEY]["tests"])
        cost.assertions.append(grade.evidence[KEY]["assertions"])


def processor_seconds() -> float:
    """Processor time of this process and of all that it started: those that live, and those waited for."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        parents.setdefault(int(fields[1]), []).append(int(name))
        ticks[int(name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [os.getpid()]
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += parents.get(process, ())
    return total / _TICKS


def _rounded(samples: Samples) -> dict[str, list[float]]:
    return {
        "wall_s": [round(value, 3) for value in samples.wall_s],
        "processor_s": [round(value, 3) for value in samples.processor_s],
    }
