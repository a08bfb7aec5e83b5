"""What is known of a task before any candidate: which tests run the functions that its solution changes.

A plan comes from the gold solution and the initial files alone, so no candidate can change it. It is made
once for a task: the task's tests run on both versions with their own inputs, and report what they observe.
"""

import ast
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread

from harnessgym.errors import SandboxError, TaskError
from harnessgym.grading.by_value.calls import PlannedCall, fresh_calls
from harnessgym.grading.by_value.observation import (
    ObservedRun,
    TestObservation,
    differences,
    read_observations,
    stable,
)
from harnessgym.grading.by_value.variants import TestSource
from harnessgym.grading.differential.functions import Function, is_test, python_files
from harnessgym.grading.differential.inputs import FunctionCall
from harnessgym.grading.differential.recording import recorded_calls, recording_job
from harnessgym.grading.differential.suite import is_collected, own_tests, probe, program
from harnessgym.grading.verifier import Opener
from harnessgym.task import Task

_GOLD_S = 2.0
"""Seconds for one test on the gold solution. A test that takes longer is not used."""
_CANDIDATE_S = 20.0
"""Seconds for the same test on a candidate, and on the initial files: a busy machine is no difference."""
_HANGS = 3
"""Tests that may take longer on a candidate until no more are run."""
RUN_S = 300.0
"""Seconds for all tests of a run together."""
_ALL = 1_000_000
_APPLY_S = 60.0
_RECORDED = 16
"""Most calls of one function that are recorded for a plan."""
_VALUES = 200
"""Most values of one test."""
_ORIGINAL_FORMS = 256
"""Most parametrised forms of a test when the plan is made."""
_VARIANTS = 24
"""Variants at a judgement."""
_AGAIN = 4
"""How many times as many inputs a second draw has."""
_NEAR = 0.75
"""Share of its variants that stay near their tests."""
_FORMS = 3
"""Most parametrised forms of a variant."""
_TELLING_FORMS = 12
"""Most forms of a test that a plan names."""
_LONGEST_FORM = 100
"""Longest id of a form in a plan, in characters."""
KEPT_TESTS = 64
"""Most tests that a plan names."""


@dataclass(frozen=True, slots=True)
class TestFiles:
    """The test files of a task."""

    __test__ = False  # no test class, though its name begins like one

    texts: Mapping[str, str]
    """All files, helpers included: relative path to text."""
    collected: tuple[str, ...]
    """Those with tests."""
    sources: tuple[str, ...] = ()
    """Folders of the workspace that come before installed packages; see `checks/pytests.py`."""
    without: frozenset[str] = frozenset()
    """Tests that are not reliable, as `file::function`."""

    @property
    def helpers(self) -> dict[str, str]:
        """Files without tests, which tests may import."""
        return {path: text for path, text in self.texts.items() if path not in self.collected}


def files_of(task: Task, gold: Path, added: Mapping[str, str]) -> TestFiles:
    """The test files of a task: those that its checks or its format name, else those of the gold workspace.

    `added` are test files that the task adds to the workspace (`added_tests`).
    """
    texts = dict(task.metadata.get("test_files") or {})
    checks = [check for check in task.metadata.get("tests", ()) if check.get("kind") == "pytest"]
    if checks and texts:
        collected = tuple(dict.fromkeys(file for check in checks for file in check["files"]))
        sources = tuple(dict.fromkeys(folder for check in checks for folder in check.get("sources", ())))
        without = frozenset(name_of(test) for check in checks for test in check.get("without", ()))
        return TestFiles(texts, collected, sources, without)
    if not any(map(is_collected, texts)):
        own = [file for file in own_tests(gold) if file not in added]
        folders = {file.rpartition("/")[0] for file in (*own, *added)}
        beside = [file for file in python_files(gold) if file.rpartition("/")[0] in folders]
        texts = {file: (gold / file).read_text(errors="replace") for file in beside} | dict(added)
    collected = tuple(file for file in texts if is_collected(file))
    return TestFiles(texts, collected, ("src",) if (gold / "src").is_dir() else ())


async def added_tests(task: Task, open_gold: Opener) -> dict[str, str]:
    """The test files that the task's `test_patch` makes of the gold workspace's. Raises SandboxError."""
    specs = [task.metadata.get(key) for key in ("swe_bench", "swe_rebench")]
    patch = "".join(str(spec.get("test_patch", "")) for spec in specs if isinstance(spec, Mapping))
    named = [file for file in re.findall(r"^\+\+\+ b/(\S+)$", patch, re.MULTILINE) if file.endswith(".py")]
    if not named:
        return {}
    async with open_gold() as sandbox:
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        done = await sandbox.exec(command, stdin=patch.encode(), timeout_s=_APPLY_S)
        if not done.ok:
            raise TaskError(
                f"Task {task.id!r}: its test_patch does not apply to the solution: {done.describe(300)}."
            )
        return {file: (await sandbox.read(file)).decode(errors="replace") for file in named}


@dataclass(frozen=True, slots=True)
class PlannedTest:
    """A test whose variants are used."""

    file: str
    function: str
    """`test_x`, or `Class::test_x`."""
    telling: bool
    """Whether it observes other values without the solution."""
    forms: tuple[str, ...] = ()
    """Ids of parameters with which it does, if it has parameters."""


@dataclass(frozen=True, slots=True)
class JudgementPlan:
    """What to run at each judgement of a task."""

    tests: tuple[PlannedTest, ...] = ()
    calls: tuple[PlannedCall, ...] = ()
    why: str = ""
    """Why the task cannot be judged by value; empty if it can."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "JudgementPlan":
        """The plan of `to_dict`. Raises TaskError for anything else."""
        try:
            return cls(
                tuple(PlannedTest(**{**each, "forms": tuple(each["forms"])}) for each in raw["tests"]),
                tuple(PlannedCall(**each) for each in raw["calls"]),
                raw["why"],
            )
        except (TypeError, KeyError) as error:
            raise TaskError(
                f"The plan in metadata['by_value'] cannot be read: {error!r}. Leave it empty, and it is made."
            ) from error


@dataclass(frozen=True, slots=True)
class GoldObservations:
    """What the task's tests observe on the gold solution, with their own inputs."""

    tests: Mapping[str, TestObservation]
    """What is stable, by test id."""
    reached: Mapping[str, frozenset[str]]
    """Test, as `file::function`, to the functions that it runs, as `file::name`."""
    imported: frozenset[str]
    """Functions that run when the test files are imported."""


async def observe_gold(files: TestFiles, open_gold: Opener, open_prepared: Opener) -> GoldObservations:
    """Runs all tests twice: on the gold solution, and on a copy of it made by `prepared`.

    Raises SandboxError when a sandbox failed or most tests time out, TaskError when the gold solution cannot
    be run.
    """
    job = await anyio.to_thread.run_sync(original_job, files)
    runs = [await observe(opener, job, is_gold=True) for opener in (open_prepared, open_gold)]
    for run in runs:
        if run.forged or not run.ended:
            raise TaskError(f"The tests cannot be observed on the gold solution: {run.forged or 'no end'}.")
        # A plan is kept, so one that others' programs slowed down must not become a task that shows nothing.
        late = sum(seen.broken == "hang" for seen in run.tests.values())
        if late > len(run.tests) / 2:
            raise SandboxError(
                f"{late} of {len(run.tests)} tests of the gold solution take longer than {_GOLD_S:g} s. This "
                "machine is too busy to plan how to judge by value, or the tests are too slow for it."
            )
    reached: dict[str, set[str]] = {}
    for test, seen in runs[0].tests.items():
        reached.setdefault(name_of(test), set()).update(seen.reached)
    by_test = {name: frozenset(each) for name, each in reached.items()}
    return GoldObservations(stable(*runs), by_test, runs[0].imported)


async def record_calls(
    files: TestFiles, functions: Sequence[Function], open_gold: Opener
) -> dict[tuple[str, str], list[FunctionCall]]:
    """Records calls of functions while the tests run on the gold solution. Raises SandboxError."""
    roots = list(dict.fromkeys([*files.sources, *(function.root for function in functions), "."]))
    tests = {"files": dict(files.texts), "order": list(files.collected)}
    job = {**recording_job(functions, roots, _RECORDED), **tests}
    async with open_gold() as sandbox:
        return recorded_calls([await probe(sandbox, program("tracing"), job, RUN_S, is_gold=True)])


async def planned_tests(
    files: TestFiles, functions: Collection[str], gold: GoldObservations, open_start: Opener
) -> tuple[PlannedTest, ...]:
    """The tests that run one of the functions, given as `file::name`, and which of them show the fault.

    Raises SandboxError when a sandbox failed.
    """
    names = [
        name
        for name, reached in gold.reached.items()
        if not (reached | gold.imported).isdisjoint(functions) and name not in files.without
    ]
    job = await anyio.to_thread.run_sync(original_job, files, names)
    start = await observe(open_start, job, is_gold=False)
    chosen = frozenset(names)
    expected = {test: seen for test, seen in gold.tests.items() if name_of(test) in chosen}
    telling: dict[str, list[str]] = {}
    for difference in differences(expected, start.tests):
        name, _, form = difference.test.partition("[")
        telling.setdefault(name, []).append(form.removesuffix("]"))
    tests = [PlannedTest(*_split(name), name in telling, _forms(telling.get(name, ()))) for name in names]
    tests.sort(key=lambda test: not test.telling)
    return tuple(tests[:KEPT_TESTS])


def prepared(folder: Path) -> dict[str, str]:
    """The Python files of a workspace in which every function reports that it runs: relative path to text."""
    texts = {}
    for file in python_files(folder):
        if is_test(file):
            continue
        try:
            tree = ast.parse((folder / file).read_bytes())
            _report(tree, f"{file}::")
            texts[file] = ast.unparse(ast.fix_missing_locations(tree))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return texts


def _report(tree: ast.AST, prefix: str) -> None:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # After the docstring, which the package may read.
            at = int(ast.get_docstring(node, clean=False) is not None)
            call = ast.Call(ast.Name("__reached__", ast.Load()), [ast.Constant(f"{prefix}{node.name}")], [])
            node.body.insert(at, ast.Expr(call))
        elif isinstance(node, ast.ClassDef):
            _report(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.stmt):
            _report(node, prefix)


def _forms(ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(form for form in ids if 0 < len(form) <= _LONGEST_FORM)[:_TELLING_FORMS]


def name_of(test: str) -> str:
    """A test without its parameters: `file::function`."""
    return test.partition("[")[0]


def _split(name: str) -> tuple[str, str]:
    file, _, function = name.partition("::")
    return file, function


def original_job(files: TestFiles, names: Sequence[str] | None = None) -> dict[str, Any]:
    """A job for `runners/observing.py`: these tests, or all, with their own inputs."""
    wanted: dict[str, list[str]] = {}
    for file, function in map(_split, names or ()):
        wanted.setdefault(file, []).append(function)
    sources = {
        file: source_of(file, files.texts[file]) for file in (files.collected if names is None else wanted)
    }
    texts = {file: source.original() for file, source in sources.items() if source is not None}
    tests = {file: None if names is None else wanted[file] for file in texts}
    return {**_job(files, texts), "tests": tests, "forms": _ORIGINAL_FORMS, "seed": ""}


def variant_job(
    files: TestFiles,
    sources: Mapping[str, TestSource],
    plan: JudgementPlan,
    draw: random.Random,
    *,
    again: bool = False,
) -> dict[str, Any]:
    """A job for `runners/observing.py`: calls, and variants, most of them of tests that show the fault.

    After a draw that did not show it, what is drawn `again` has four times as many inputs, and most of the
    variants stay near their tests: where few inputs show a fault, most are near those that tests have.
    """
    times = _AGAIN if again else 1
    texts: dict[str, str] = {}
    wanted: dict[str, list[str] | None] = {}
    for test in (test for _ in range(times) for test in _drawn(plan.tests, draw)):
        # A name of its own beside the original: tests may import what lies there.
        folder = test.file.rpartition("/")[0]
        path = f"{folder}/" * bool(folder) + f"test_{draw.randrange(1 << 40):010x}.py"
        near = again and draw.random() < _NEAR
        texts[path] = sources[test.file].variant(test.function, draw, test.forms, near=near)
        wanted[path] = [test.function]
    if calls := fresh_calls(plan.calls, draw, times):
        path = f"test_{draw.randrange(1 << 40):010x}.py"
        texts[path] = calls
        wanted[path] = None
    return {**_job(files, texts), "tests": wanted, "forms": _FORMS, "seed": str(draw.random())}


def _drawn(tests: Sequence[PlannedTest], draw: random.Random) -> list[PlannedTest]:
    """The test of each variant: `_VARIANTS` in all, two thirds of them of tests that show the fault."""
    groups = [[test for test in tests if test.telling], [test for test in tests if not test.telling]]
    share = 2 * _VARIANTS // 3
    counts = (share, _VARIANTS - share) if all(groups) else (_VARIANTS, _VARIANTS)
    chosen: list[PlannedTest] = []
    for group, count in zip(groups, counts, strict=True):
        shuffled = draw.sample(group, len(group))
        chosen += [shuffled[number % len(group)] for number in range(count)] if group else []
    return chosen


def _job(files: TestFiles, texts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "encoding": program("encoding"),
        "sources": list(files.sources),
        "files": {**files.helpers, **texts},
        "values": _VALUES,
    }


def source_of(file: str, text: str) -> TestSource | None:
    """The test file, or None if it is no Python."""
    try:
        return TestSource(file, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


async def observe(open_sandbox: Opener, job: Mapping[str, Any], *, is_gold: bool) -> ObservedRun:
    """Runs `runners/observing.py` in a fresh sandbox. Raises SandboxError when the sandbox failed."""
    # Gold has little time for each test and as much as it needs for all. What it answers, a candidate must
    # answer within a multiple of that, so that neither a slow machine nor many hangs end its run.
    limits = {"test_s": _GOLD_S, "hangs": _ALL} if is_gold else {"test_s": _CANDIDATE_S, "hangs": _HANGS}
    async with open_sandbox() as sandbox:
        run = await probe(sandbox, program("observing"), {**job, **limits}, RUN_S, is_gold=is_gold)
        return read_observations(run)
