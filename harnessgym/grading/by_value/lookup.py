"""The control of a judgement: the initial files, with a table of gold's answers to the calls of the tests.

Fresh inputs must refuse a candidate that knows the task's tests and nothing else. So they count only if
they refuse the best that it could be: calls that gold made while it ran these tests, with their own inputs,
get gold's answers (`runners/tabling.py`), and all others run the faulty code.

A variant runs twice in the control: with the table, and without it in a *twin* of its file. Where the faulty
code alone is right, a table would leave it alone.
"""

import ast
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import anyio.to_thread

from harnessgym.errors import SandboxError
from harnessgym.grading.by_value.observation import ObservedRun, differences
from harnessgym.grading.by_value.plan import (
    KEPT_TESTS,
    JudgementPlan,
    TestFiles,
    name_of,
    observe,
    original_job,
)
from harnessgym.grading.differential.functions import is_test, python_files
from harnessgym.grading.differential.suite import program
from harnessgym.grading.verifier import Opener
from harnessgym.sandbox import Sandbox

PROGRAM = "_harnessgym_tabling.py"
TABLE = "_calls.table"
RECORDING = b"record %d\n"
ANSWERING = b"answer %d\n"
"""The first line of the table's file: with the most values that a process reads in arguments."""
_READ = 100_000
_TWIN = "_untabled.py"
_GENERATING = frozenset({"contextmanager", "asynccontextmanager"})
"""Decorators whose generators are resumed in other ways than by iteration."""
_IMPORTING = """\
import os as __os__, sys as __sys__
from importlib import util as __util__
if {program!r} not in __sys__.modules:
    __table__ = __util__.spec_from_file_location(
        {program!r}, __os__.path.join(__os__.path.dirname(__os__.path.abspath(__file__)), {up!r}, {program!r})
    )
    __sys__.modules[{program!r}] = __util__.module_from_spec(__table__)
    __table__.loader.exec_module(__sys__.modules[{program!r}])
__tabled__ = __sys__.modules[{program!r}].tabled
"""


@dataclass(frozen=True, slots=True)
class LookupControl:
    """The initial files with a table of the visible tests' calls."""

    folder: Path
    """The workspace."""
    unanswered: frozenset[str] = frozenset()
    """Tests that fail with the table even with their own inputs, as `test_x` or `Class::test_x`: another
    table might answer them. Empty if the table is not `strong`."""
    strong: bool = False
    """Whether the table answers some test that shows the fault, with its own inputs."""

    def counts(self, tests: Sequence[str] | None) -> bool:
        """Whether variants of these tests, or fresh calls if there are none, can show that a table fails."""
        return tests is None or self.unanswered.isdisjoint(tests)


async def make_control(
    files: TestFiles, plan: JudgementPlan, place: Path, opener_of: Callable[[Path], Opener]
) -> LookupControl:
    """Makes the control beside the folders `gold` and `start` of `place`.

    `opener_of` gives an opener of sandboxes with a folder. Without a plan, the control is the initial files
    alone. Raises SandboxError when a sandbox failed or gold's tests time out.
    """
    gold, start, folder = (place / name for name in ("gold", "start", "control"))
    planned = [test for test in plan.tests if test.file in files.texts]
    if not planned:
        return LookupControl(start)
    tests = [f"{test.file}::{test.function}" for test in planned]
    job = await anyio.to_thread.run_sync(original_job, files, tests)
    expected = await observe(opener_of(gold), job, is_gold=True)
    _check(expected)
    jobs = [job]
    if len(plan.tests) >= KEPT_TESTS:
        # A plan that is full may leave out tests that call the changed functions too.
        jobs.append(await anyio.to_thread.run_sync(original_job, files))
    table = await _recorded(jobs, place, opener_of)
    await anyio.to_thread.run_sync(_lay_tabled, start, folder, gold, table)
    answers = await observe(opener_of(folder), job, is_gold=False)
    wrong = _differing(expected, answers)
    if any(seen.broken == "hang" for seen in answers.tests.values()):
        # A busy machine must not make the table weaker for as long as it is kept.
        wrong &= _differing(expected, await observe(opener_of(folder), job, is_gold=False))
    telling = {name for name, test in zip(tests, planned, strict=True) if test.telling}
    if telling <= wrong:
        return LookupControl(folder)
    return LookupControl(folder, frozenset(name.partition("::")[2] for name in wrong), strong=True)


async def _recorded(
    jobs: Sequence[Mapping[str, Any]], place: Path, opener_of: Callable[[Path], Opener]
) -> bytes:
    """The table of what gold answers to the calls of these jobs' tests, each in a sandbox of its own."""
    gold, start, recording = (place / name for name in ("gold", "start", "recording"))
    table = RECORDING % _READ

    @asynccontextmanager
    async def open_recording() -> AsyncIterator[Sandbox]:
        nonlocal table
        async with opener_of(recording)() as sandbox:
            yield sandbox
            table = await sandbox.read(TABLE)

    for job in jobs:
        await anyio.to_thread.run_sync(_lay_tabled, gold, recording, start, table)
        await observe(open_recording, job, is_gold=False)
        await anyio.to_thread.run_sync(shutil.rmtree, recording)
    return ANSWERING % _READ + table.removeprefix(RECORDING % _READ)


def _differing(expected: ObservedRun, answers: ObservedRun) -> set[str]:
    return {name_of(each.test) for each in differences(expected.tests, answers.tests)}


def _check(gold: ObservedRun) -> None:
    late = sum(seen.broken == "hang" for seen in gold.tests.values())
    if late > len(gold.tests) / 2:
        raise SandboxError(
            f"{late} of {len(gold.tests)} tests of the solution did not end in time, so what a lookup table "
            "can answer is not known. This machine is too busy to judge by value."
        )


def with_twins(job: Mapping[str, Any], files: Sequence[str]) -> dict[str, Any]:
    """A job of variants for the control: these files only, each followed by its twin."""
    twins = {twin_of(file): file for file in files}
    texts = {**job["files"], **{twin: job["files"][file] for twin, file in twins.items()}}
    tests = {each: job["tests"][file] for twin, file in twins.items() for each in (file, twin)}
    return {**job, "files": texts, "tests": tests, "twins": twins}


def twin_of(test: str) -> str:
    """The file, or the test, that runs without the table."""
    file, separator, name = test.partition("::")
    return f"{file.removesuffix('.py')}{_TWIN}{separator}{name}"


def _lay_tabled(workspace: Path, to: Path, other: Path, table: bytes) -> None:
    """Copies a workspace with the table's bytes.

    Functions in files that the `other` workspace has too are decorated.
    """
    shutil.copytree(workspace, to, symlinks=True)
    (to / TABLE).write_bytes(table)
    (to / PROGRAM).write_text(program("tabling"), encoding="utf-8")
    for file in python_files(workspace):
        if not is_test(file) and (other / file).is_file():
            source = (workspace / file).read_bytes()
            text = tabled(file, source, everywhere=source != (other / file).read_bytes())
            if text:
                (to / file).write_text(text, encoding="utf-8", errors="surrogateescape")


def tabled(file: str, source: str | bytes, *, everywhere: bool) -> str:
    """A module in which each function is decorated, for a workspace with `PROGRAM` and `TABLE` at its top.

    Calls are in the table `everywhere`, or only if tests make them. Empty if the source is no Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    _decorate(tree, f"{file}::", everywhere=everywhere)
    up = "/".join([".."] * (len(PurePosixPath(file).parts) - 1)) or "."
    at = _after_start(tree)
    tree.body[at:at] = ast.parse(_IMPORTING.format(program=PROGRAM, up=up)).body
    return ast.unparse(ast.fix_missing_locations(tree))


def _decorate(tree: ast.AST, prefix: str, *, everywhere: bool) -> None:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            names = {
                each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "")
                for each in node.decorator_list
            }
            if not names & _GENERATING:
                call = ast.Call(
                    ast.Name("__tabled__", ast.Load()),
                    [ast.Constant(f"{prefix}{node.name}"), ast.Constant(everywhere)],
                    [],
                )
                node.decorator_list.append(call)
        elif isinstance(node, ast.ClassDef):
            _decorate(node, f"{prefix}{node.name}.", everywhere=everywhere)
        elif isinstance(node, ast.stmt):
            _decorate(node, prefix, everywhere=everywhere)


def _after_start(tree: ast.Module) -> int:
    """Where code may stand: after a docstring and imports from `__future__`."""
    at = int(ast.get_docstring(tree, clean=False) is not None)
    while (
        at < len(tree.body)
        and isinstance(node := tree.body[at], ast.ImportFrom)
        and node.module == "__future__"
    ):
        at += 1
    return at
