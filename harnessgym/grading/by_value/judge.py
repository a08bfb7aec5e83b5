"""Judges a workspace by value: the same fresh inputs for gold and for the candidate, each in its own sandbox.

The inputs are drawn from a seed that is new at every judgement, so what the candidate can know beforehand,
the visible tests included, does not answer them. All comparing happens on this machine, on values that it
decoded itself. Where the candidate differs, gold runs again: what it does not do twice alike is not compared.
Inputs that do not tell the initial files from gold, even beside a table of gold's answers to the calls of the
task's tests (`lookup.py`), are drawn again.

What the candidate causes counts against it. A difference gives no reward. Lines that the runner cannot have
written, a run that ends early, and a run that hangs where gold does not are tampering. What a task causes is
its own: a task whose inputs cannot be varied has a plan that says why, and is never judged here.
"""

import asyncio
import hashlib
import os
import random
import secrets
import shutil
import tempfile
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from harnessgym.errors import TaskError
from harnessgym.grading.artifacts import collected_artifacts
from harnessgym.grading.by_value.calls import planned
from harnessgym.grading.by_value.lookup import LookupControl, make_control
from harnessgym.grading.by_value.observation import (
    ObservedRun,
    TestObservation,
    ValueDifference,
)
from harnessgym.grading.by_value.plan import (
    JudgementPlan,
    TestFiles,
    added_tests,
    files_of,
    observe,
    observe_gold,
    planned_tests,
    prepared,
    record_calls,
    source_of,
    variant_job,
)
from harnessgym.grading.by_value.reference_runs import ReferenceRuns, differing_tests, together
from harnessgym.grading.by_value.variants import TestSource
from harnessgym.grading.differential.functions import changed, differing
from harnessgym.grading.upload import holding
from harnessgym.grading.verifier import Opener
from harnessgym.task import Grade, Task
from harnessgym.task_setup.workspace_setup import furnish, solve

KEY = "by_value"
"""Key of the plan in a task's metadata, and of the judgement in a grade's evidence."""
_DRAWS = 32
"""Most draws of inputs until one shows the task's fault. After the first, a candidate gets only that one."""
_KEPT = 32
"""Tasks whose gold solution is kept on this machine."""
_SHOWN = 5


def is_judged_by_value(task: Task) -> bool:
    """Whether a task asks to be judged by value."""
    return KEY in task.metadata


@dataclass(frozen=True, slots=True)
class ValueJudgement:
    """How the candidate's values compare with gold's."""

    agrees: bool
    tests: int
    """Tests that were compared, each with inputs of its own."""
    assertions: int
    """Assertions whose values were compared."""
    shown: int
    """Tests whose values differ on the initial files, also beside a table of the visible tests' calls, of
    those that run there: how well these inputs tell right from wrong."""
    table: bool = False
    """Whether `shown` says something about tables too: with one, the initial files pass a test that shows the
    fault, with the test's own inputs."""
    differs: tuple[ValueDifference, ...] = ()
    tampered: str = ""
    """What the candidate did that no honest run does; empty if nothing."""
    seed: int = 0
    """Seed of the inputs. The same seed gives the same inputs."""
    draws: int = 1
    """Draws until one told the control from gold."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "agrees": self.agrees,
            "seed": self.seed,
            "tests": self.tests,
            "assertions": self.assertions,
            "shown": self.shown,
            "table": self.table,
            "draws": self.draws,
            "differences": len(self.differs),
            "differs": [difference.to_dict() for difference in self.differs[:_SHOWN]],
            "seconds": round(self.seconds, 3),
        }

    def applied(self, grade: Grade, least: float = 0.0) -> Grade:
        """The grade after this judgement: what does not agree gets the `least` reward of the task."""
        evidence = {**grade.evidence, KEY: self.to_dict()}
        if self.tampered:
            return replace(grade, rewards={"reward": 0.0}, tampered=self.tampered, evidence=evidence)
        rewards = grade.rewards if self.agrees else {**grade.rewards, "reward": least}
        return replace(grade, rewards=rewards, evidence=evidence)


class GoldReference:
    """The gold solution of a task on this machine, and the plan to judge by it."""

    def __init__(
        self,
        folder: Path,
        of_image: Sequence[str],
        files: TestFiles,
        plan: JudgementPlan,
        control: LookupControl,
    ) -> None:
        """`folder` is removed with this object, at the latest when this process ends."""
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.workspace = folder / "gold"
        """The workspace as the gold solution leaves it."""
        self.files = files
        self.plan = plan
        self.control = control
        self.kept_runs: dict[int, ReferenceRuns] = {}
        """Runs with a seed that all judgements share."""
        self._of_image = of_image

    def opener(self, fresh: Opener) -> Opener:
        """Opens sandboxes with the gold solution."""
        return holding(self.workspace, fresh, self._of_image)

    def runs(self, job: Mapping[str, Any], fresh: Opener) -> ReferenceRuns:
        """The runs of a job on the gold solution and on the control."""
        open_control = holding(self.control.folder, fresh, self._of_image)
        return ReferenceRuns(job, self.opener(fresh), open_control, self.control)

    @cached_property
    def sources(self) -> Mapping[str, TestSource]:
        """The planned test files."""
        return sources_of(self.files, self.plan)


class ByValueJudge:
    """Judges by value. Keeps what it knows of the last tasks."""

    def __init__(self, root: Path | None = None, *, seed: int | None = None) -> None:
        """`root` is the folder for gold solutions; by default that for temporary files.

        With a `seed`, all candidates of a task get the same inputs and gold answers them only once. That is
        for trying many cheats. In a run that trains, a policy could learn such inputs.
        """
        self._root = root
        self._seed = seed
        self._known: OrderedDict[str, GoldReference] = OrderedDict()
        self._making: dict[str, asyncio.Lock] = {}

    async def judge(
        self, task: Task, open_sandbox: Opener, fresh: Opener, *, seed: int | None = None
    ) -> ValueJudgement:
        """Judges the workspace in the sandboxes of `open_sandbox`.

        `fresh` opens empty sandboxes of the same image. The seed is drawn if it is not given.
        Raises SandboxError when a sandbox failed, TaskError when the task cannot be judged by value.
        """
        began = time.monotonic()
        reference = await self.reference(task, fresh)
        if reference.plan.why:
            raise TaskError(f"Task {task.id!r} cannot be judged by value: {reference.plan.why}")
        asked_seed = self._seed if seed is None else seed
        drawn = secrets.randbits(48) if asked_seed is None else asked_seed
        # A draw that shows nothing on the control would show nothing on a cheat: such a draw takes a reward
        # away, and gives none.
        for turn in range(_DRAWS):
            job = await anyio.to_thread.run_sync(_job, task, reference, drawn, turn)
            runs = reference.runs(job, fresh)
            if asked_seed is not None and asked_seed == self._seed:
                runs = reference.kept_runs.setdefault(turn, runs)
            if turn and not await runs.tells():
                continue
            judgement = await _judgement(runs, job, open_sandbox)
            if judgement.shown or not judgement.agrees:
                return replace(judgement, seed=drawn, draws=turn + 1, seconds=time.monotonic() - began)
        raise TaskError(
            f"Task {task.id!r}: {_DRAWS} draws of inputs do not tell the initial files from the solution, "
            "when they have a table of the calls of its tests."
        )

    async def reference(self, task: Task, fresh: Opener) -> GoldReference:
        """The gold solution and the plan of a task. Made once, however many ask at one time.

        Raises SandboxError when a sandbox failed, TaskError when there is no solution or it cannot be run.
        """
        key = _digest(task)
        if key not in self._known:
            async with self._making.setdefault(key, asyncio.Lock()):
                if key not in self._known:
                    self._known[key] = await self._made(task, fresh)
            self._making.pop(key, None)
        self._known.move_to_end(key)
        reference = self._known[key]
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return reference

    async def _made(self, task: Task, fresh: Opener) -> GoldReference:
        if task.solution is None or task.steps:
            lacks = "has several steps" if task.steps else "has no solution"
            raise TaskError(f"Task {task.id!r} {lacks}, so it cannot be judged by value.")
        made = partial(tempfile.mkdtemp, prefix="harnessgym-gold-", dir=self._root)
        folder = Path(await anyio.to_thread.run_sync(made))
        try:
            of_image = await _leave(task, fresh, folder / "gold", solved=True)
            await _leave(task, fresh, folder / "start", solved=False)
            added = await added_tests(task, holding(folder / "gold", fresh, of_image))
            files = await anyio.to_thread.run_sync(files_of, task, folder / "gold", added)
            shipped = task.metadata.get(KEY)
            if isinstance(shipped, Mapping) and "tests" in shipped:
                plan = JudgementPlan.from_dict(shipped)
            else:
                plan = await _plan(files, folder, fresh)
            control = await make_control(
                files, plan, folder, partial(holding, fresh=fresh, left_out=of_image)
            )
            return GoldReference(folder, of_image, files, plan, control)
        except BaseException:
            await anyio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
            raise


async def _plan(files: TestFiles, place: Path, fresh: Opener) -> JudgementPlan:
    functions = await anyio.to_thread.run_sync(changed, place / "gold", place / "start")
    if not functions:
        return JudgementPlan(why="The solution changes no Python function.")
    if not files.collected:
        return JudgementPlan(why="It has no tests whose inputs could be varied.")
    await anyio.to_thread.run_sync(_prepare, place)
    opened = (holding(place / "gold", fresh), holding(place / "prepared", fresh))
    observed = await observe_gold(files, *opened)
    tests = await planned_tests(files, functions, observed, holding(place / "start", fresh))
    if not any(test.telling for test in tests):
        return JudgementPlan(why="No value that its tests observe differs without the solution.")
    differ = await anyio.to_thread.run_sync(differing, place / "gold", place / "start")
    calls = await record_calls(files, differ.functions, opened[0])
    return JudgementPlan(tests, planned(differ.functions, calls))


def _prepare(place: Path) -> None:
    shutil.copytree(place / "gold", place / "prepared", symlinks=True)
    for file, text in prepared(place / "gold").items():
        (place / "prepared" / file).write_text(text, encoding="utf-8", errors="surrogateescape")


async def _leave(task: Task, fresh: Opener, folder: Path, *, solved: bool) -> tuple[str, ...]:
    """Collects the task's artifacts, with or without the solution, in a folder of this machine.

    Returns what a sandbox with them takes from the image. Raises TaskError if they cannot be graded.
    """
    async with fresh() as sandbox:
        await furnish(task, sandbox)
        if solved:
            await solve(task, sandbox)
        async with collected_artifacts(task, sandbox, folder.parent) as evidence:
            if evidence.tampered is not None:
                problem = f"what its solution leaves is not graded: {evidence.tampered}"
                raise TaskError(f"Task {task.id!r}: {problem}")
            await anyio.to_thread.run_sync(os.rename, evidence.folder, folder)
            return evidence.of_image


def sources_of(files: TestFiles, plan: JudgementPlan) -> dict[str, TestSource]:
    """The planned test files. Raises TaskError if one is missing or no Python."""
    sources = {}
    for file in dict.fromkeys(test.file for test in plan.tests):
        source = source_of(file, files.texts.get(file, "("))
        if source is None:
            raise TaskError(f"The plan names the test file {file!r}, which the task lacks or is no Python.")
        sources[file] = source
    return sources


def _job(task: Task, reference: GoldReference, seed: int, turn: int) -> dict[str, Any]:
    draw = random.Random(f"{task.id} {seed} {turn}")
    return variant_job(reference.files, reference.sources, reference.plan, draw, again=turn > 0)


async def _judgement(runs: ReferenceRuns, job: Mapping[str, Any], open_sandbox: Opener) -> ValueJudgement:
    _, _, candidate = await together(
        runs.run("gold"), runs.run("control"), observe(open_sandbox, job, is_gold=False)
    )
    expected: Mapping[str, TestObservation] = (await runs.gold()).tests
    differs = await anyio.to_thread.run_sync(differing_tests, expected, candidate)
    if differs:
        # What gold does not do twice alike says nothing about the candidate.
        expected = await runs.gold_twice()
        differs = await anyio.to_thread.run_sync(differing_tests, expected, candidate)
    tampered = _tampered(candidate)
    return ValueJudgement(
        agrees=not differs and not tampered,
        tests=len(expected),
        assertions=sum(len(each.groups) for each in expected.values()),
        shown=await runs.shown(expected),
        table=runs.table,
        differs=differs,
        tampered=tampered,
    )


def _tampered(run: ObservedRun) -> str:
    if run.forged:
        return f"The answers to fresh inputs hold {run.forged}."
    if run.hung:
        return "The run of fresh inputs does not end, and that of the gold solution does."
    return "" if run.ended else "The run of fresh inputs ends early, and that of the gold solution does not."


def _digest(task: Task) -> str:
    fields: Sequence[object] = (replace(task, needs=frozenset()), sorted(task.needs))
    return hashlib.sha256(repr(fields).encode(errors="surrogatepass")).hexdigest()
