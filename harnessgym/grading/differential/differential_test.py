"""A second opinion on a solution that the tests accept: runs it and the gold solution on the same inputs.

A solution that passes the tests can still be wrong: many patches that benchmarks call resolved behave
differently from the developers' (PatchDiff, arXiv 2503.15223). This module calls the functions that differ
with the arguments that tests use and with seeded mutations of them. Gold runs twice and the candidate once,
each version in a fresh sandbox and each call in a process of its own. The developers' whole test suite runs
too, if the workspace has one.

The candidate can forge its own answers, but gold's answers are never in the sandbox where the candidate runs.
A candidate that gives an answer that no honest run could give does not agree. Nothing here changes a reward;
`harnessgym.grading.by_value` does.
"""

import random
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from harnessgym.errors import HarnessGymError, TaskError
from harnessgym.grading.artifacts import collected_artifacts
from harnessgym.grading.differential.comparison import NOT_TWICE, VersionResults, compare, read_answers
from harnessgym.grading.differential.functions import Compared, Function, differing, python_files
from harnessgym.grading.differential.inputs import FunctionCall, annotated, mutated, shown
from harnessgym.grading.differential.recording import recorded_calls, recording_job
from harnessgym.grading.differential.suite import (
    Opinion,
    Probe,
    SuiteResult,
    is_collected,
    own_tests,
    probe,
    program,
    run_suite,
)
from harnessgym.grading.upload import holding
from harnessgym.grading.verifier import Opener
from harnessgym.task import Task
from harnessgym.task_setup.workspace_setup import furnish, solve

_SEEN = 32
"""Most calls of a function that are taken from tests."""
_MADE = 64
"""Calls of a function that are generated from them."""
_ALL = 1_000
"""Most calls of all functions together."""
CASE_S = 10.0
"""Seconds for one call. A call on which the gold solution times out is not used."""
_HANGS = 2
"""Hanging calls of a function after which no more are tried."""
_RUN_S = 600.0
"""Seconds for one version's calls, or for a run of tests."""
_MAX_BYTES = 1 << 30
_MAX_FILES = 100_000
_FAILURES = (HarnessGymError, OSError, MemoryError, RecursionError)
"""Errors after which there is no opinion. They never change a grade."""

Inputs = Sequence[tuple[Function, FunctionCall]]


async def opinion_on(task: Task, workspace: Path, fresh: Opener, *, case_s: float = CASE_S) -> Opinion:
    """Returns a second opinion on an exported workspace.

    `fresh` opens an empty sandbox of the task's image without network. There is no opinion on a task of
    several steps, nor on one of its steps: that would need what gold left in the earlier steps.
    """
    if task.steps:
        return Opinion(
            None, "The task has several steps, and what gold leaves after one of them is not known."
        )
    try:
        async with gold_of(task, fresh) as gold:
            openers = holding(workspace, fresh), holding(gold, fresh)
            return await second_opinion(task, workspace, *openers, case_s=case_s)
    except _FAILURES as error:
        return Opinion(None, f"The gold solution could not be made: {_error_text(error)}")


async def second_opinion(
    task: Task, workspace: Path, open_sandbox: Opener, open_gold: Opener, *, case_s: float = CASE_S
) -> Opinion:
    """Compares the exported `workspace` with the gold solution.

    `open_sandbox` opens a sandbox with the workspace, `open_gold` one with the gold solution. Raises nothing:
    after a failure, an impossible answer or code nested too deep there is no opinion.
    """
    try:
        folder = await anyio.to_thread.run_sync(
            partial(tempfile.TemporaryDirectory, prefix="harnessgym-opinion-")
        )
        try:
            gold = Path(folder.name) / "gold"
            async with open_gold() as sandbox:
                await sandbox.export(gold, max_bytes=_MAX_BYTES, max_files=_MAX_FILES)
            create = partial(_Comparison, task, gold, workspace, open_sandbox, open_gold, case_s)
            comparison = await anyio.to_thread.run_sync(create)
            return await comparison.opinion()
        finally:
            await anyio.to_thread.run_sync(folder.cleanup)
    except _FAILURES as error:
        return Opinion(None, _error_text(error))


@asynccontextmanager
async def gold_of(task: Task, fresh: Opener) -> AsyncIterator[Path]:
    """The task's artifacts as the gold solution makes them.

    Raises TaskError if there is no gold solution, or if it fails.
    """
    if task.solution is None:
        raise TaskError(f"Task {task.id!r} has no solution to compare with.")
    async with fresh() as sandbox:
        await furnish(task, sandbox)
        await solve(task, sandbox)
        async with collected_artifacts(task, sandbox) as evidence:
            yield evidence.folder


class _Comparison:
    """Compares one candidate with the gold solution."""

    def __init__(
        self, task: Task, gold: Path, candidate: Path, open_sandbox: Opener, open_gold: Opener, case_s: float
    ) -> None:
        self.task = task
        self.gold = gold
        self.candidate = candidate
        self.open_sandbox = open_sandbox
        self.open_gold = open_gold
        self.case_s = case_s
        self.hidden = _test_files(task)
        self.own = own_tests(gold)

    async def opinion(self) -> Opinion:
        compared = await anyio.to_thread.run_sync(self._differing)
        if compared is None:
            return Opinion(None, "The gold solution has no Python file to compare.")
        runs = [run async for run in self._trace(compared)]
        left_out = dict(compared.left_out)
        inputs = await anyio.to_thread.run_sync(self._inputs, compared, runs)
        for function in compared.functions:
            if all(function is not other for other, _ in inputs):
                left_out[function.place] = (
                    "no inputs are known: neither tests nor docstrings call it with plain values"
                )
        opinion = Opinion(None, left_out=left_out)
        if inputs:
            opinion = await self._compared(inputs, opinion)
            if opinion.why:
                return opinion
        suite = await self._suite(runs)
        return _concluded(
            replace(opinion, suite=suite), same=not compared.functions and not compared.left_out
        )

    def _differing(self) -> Compared | None:
        return differing(self.gold, self.candidate) if any(True for _ in python_files(self.gold)) else None

    async def _trace(self, compared: Compared) -> AsyncIterator[Probe]:
        """Runs the tests on the gold solution: the task's first, the developers' own last."""
        # `_suite` relies on the last run being the developers' own tests.
        job = self._tracing(compared.functions)
        order = [path for path in self.hidden if is_collected(path)]
        if order and compared.functions:
            async with self.open_gold() as sandbox:
                hidden = {**job, "files": self.hidden, "order": order}
                yield await probe(sandbox, program("tracing"), hidden, _RUN_S, is_gold=True)
        patch, patched = _patched_tests(self.task)
        if patched and compared.functions:
            async with self.open_gold() as sandbox:
                await sandbox.exec(
                    ["git", "apply", "--whitespace=nowarn", "-"], stdin=patch.encode(), timeout_s=60.0
                )
                yield await probe(sandbox, program("tracing"), {**job, "own": patched}, _RUN_S, is_gold=True)
        if self.own:
            async with self.open_gold() as sandbox:
                yield await probe(sandbox, program("tracing"), {**job, "own": self.own}, _RUN_S, is_gold=True)

    def _inputs(self, compared: Compared, runs: Sequence[Probe]) -> Inputs:
        recorded = recorded_calls(runs)
        sources = [
            *self.hidden.values(),
            *((self.gold / file).read_text(errors="replace") for file in self.own),
        ]
        inputs: list[tuple[Function, FunctionCall]] = []
        for function in compared.functions:
            # A generator for each function: one more function must not change the inputs of the others.
            draw = random.Random(f"{self.task.id} {self.task.seed} {function.place}")
            calls = recorded.get((function.file, function.name), [])
            if "." not in function.name or _unbound(function):
                calls = [*calls, *_cases(self.task, function), *shown(function, sources)]
            calls = list({call.key: call for call in calls}.values())[:_SEEN] or annotated(
                function, draw, _SEEN
            )
            inputs += [(function, call) for call in (*calls, *mutated(calls, draw, _MADE))]
        # Over the limit, every n-th call is kept, so that each function keeps its share.
        return inputs[:: max(1, -(-len(inputs) // _ALL))]

    async def _compared(self, inputs: Inputs, opinion: Opinion) -> Opinion:
        cases = [
            {
                "module": function.module,
                "function": function.name,
                "new": call.new,
                "args": call.args,
                "kwargs": call.kwargs,
            }
            for function, call in inputs
        ]
        roots = sorted({function.root for function, _ in inputs})
        job = {
            "roots": roots,
            "cases": cases,
            "case_s": self.case_s,
            "hangs": _HANGS,
            "encoding": program("encoding"),
        }
        # Gold runs before the candidate: if gold cannot be called, there is nothing to compare with.
        first, again = [await _answers(self.open_gold, job, len(cases), is_gold=True) for _ in range(2)]
        if first.broken or again.broken or first.forged or not first.imported:
            why = first.forged or "; ".join(first.broken.values()) or "it did not answer"
            return replace(opinion, why=f"The gold solution cannot be called: {why}.")
        theirs = await _answers(self.open_sandbox, job, len(cases), is_gold=False)
        if theirs.forged:
            why = f"The candidate's answers are none: {theirs.forged}."
            return replace(opinion, agrees=False, why=why)
        difference = compare(inputs, first, again, theirs)
        left_out = {**opinion.left_out, **dict.fromkeys(difference.unstable, NOT_TWICE)}
        names = tuple(
            dict.fromkeys(
                function.place for function, _ in inputs if function.place not in difference.unstable
            )
        )
        return replace(
            opinion, differs=difference.differs, inputs=difference.inputs, functions=names, left_out=left_out
        )

    def _tracing(self, functions: Sequence[Function]) -> dict[str, Any]:
        """A job for `runners/tracing.py` without tests."""
        source = ["src"] * (self.gold / "src").is_dir()
        roots = sorted({".", *(function.root for function in functions), *source})
        return recording_job(functions, roots, _SEEN)

    async def _suite(self, runs: Sequence[Probe]) -> SuiteResult | None:
        if not self.own:
            return None
        job = {**self._tracing(()), "own": self.own}
        return await run_suite(
            runs[-1], self.gold, self.candidate, self.open_sandbox, self.open_gold, job, _RUN_S
        )


def _error_text(error: BaseException) -> str:
    return str(error) if isinstance(error, HarnessGymError) else f"{type(error).__name__}: {error}"


def _concluded(opinion: Opinion, *, same: bool) -> Opinion:
    """The opinion with `agrees`, or with the reason why there is none. `same`: the sources do not differ."""
    failed = opinion.suite is not None and bool(opinion.suite.failed)
    if opinion.differs or failed:
        return replace(opinion, agrees=False)
    tried = opinion.inputs > 0 or (opinion.suite is not None and not opinion.suite.why)
    if tried or same:
        return replace(opinion, agrees=True)
    return replace(opinion, why="Nothing could be compared; `left_out` says why.")


async def _answers(
    open_sandbox: Opener, job: Mapping[str, Any], cases: int, *, is_gold: bool
) -> VersionResults:
    async with open_sandbox() as sandbox:
        return read_answers(await probe(sandbox, program("comparing"), job, _RUN_S, is_gold=is_gold), cases)


def _cases(task: Task, function: Function) -> list[FunctionCall]:
    """The calls of a function of this name in the task's own `call` checks."""
    checks = [test for test in task.metadata.get("tests", ()) if test.get("kind") == "call"]
    cases = [
        (case, case.get("function") or test.get("function"))
        for test in checks
        for case in test.get("cases", ())
    ]
    calls = [
        FunctionCall.of(case.get("args", ()), case.get("kwargs", {}))
        for case, name in cases
        if name == function.name
    ]
    return [call for call in calls if call is not None]


def _test_files(task: Task) -> dict[str, str]:
    files = task.metadata.get("test_files", {})
    return {str(path): str(text) for path, text in files.items()} if isinstance(files, Mapping) else {}


def _patched_tests(task: Task) -> tuple[str, list[str]]:
    """The patch that adds the task's tests, and the test files in it. Empty if there is no such patch."""
    spec = task.metadata.get("swe_bench", {})
    patch = str(spec.get("test_patch", "")) if isinstance(spec, Mapping) else ""
    named = re.findall(r"^\+\+\+ b/(\S+)$", patch, re.MULTILINE)
    return patch, [file for file in named if is_collected(file)]


def _unbound(function: Function) -> bool:
    """Whether the function is a static method or a class method, which can be called without an object."""
    return any(
        getattr(node, "id", "") in ("staticmethod", "classmethod") for node in function.node.decorator_list
    )
