"""Searches everything that an agent can read in a fresh sandbox for the solutions and tests of tasks.

A task is about a package, and another version of it may lie on the machine or in the image, for some other
program. An agent that finds it need not solve anything. Sandboxes of equal equipment show the same files, so
one reading answers for all their tasks.

A file *leaks* a task if it has a good part of the lines of a solution's file or of a test file, or most of
the lines that only the solution has. Compiled and packed files are not read, nor are those of an agent's own
installation, which is not there when tasks are checked.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import PurePosixPath

from harnessgym.errors import HarnessGymError
from harnessgym.provisioning import equipment_of, hidden_packages
from harnessgym.sandbox import Equipment, SandboxBackend
from harnessgym.task import Limits, Solution, Task

_LOG = logging.getLogger(__name__)
_LINE = 24
"""Shortest line that tells one text from others, in characters."""
_COMMON = ("import ", "from ", "#!", "set -", "# -*-", '"""', "Copyright", "# Copyright")
_COPY = (0.5, 8)
"""Part of a file's telling lines, and number of them, that make another file a version of it."""
_SECRET = (0.6, 3)
"""The same for the lines that the solution has and the task's own files lack."""
_LIMITS = Limits(wall_s=600.0, memory_mb=4_096)
_WORKSPACE = "/workspace"


@dataclass(frozen=True, slots=True)
class Leak:
    """A readable file that gives a task away."""

    path: str
    text: str
    """What it has lines of: a file of the solution or of the tests, or the solution as a whole."""
    lines: int
    of: int

    def __str__(self) -> str:
        return f"{self.path} has {self.lines} of {self.of} lines of {self.text}"


@dataclass(frozen=True, slots=True)
class _Text:
    name: str
    lines: tuple[str, ...]
    least: int


async def leaks(backend: SandboxBackend, tasks: Sequence[Task]) -> dict[str, tuple[Leak, ...]]:
    """Reads the sandboxes of `tasks` and returns the leaks of each task that has any, by its id.

    Of a file, what it has most lines of is named. Sandboxes that cannot be opened, or have no Python, are
    left out with a warning.
    """
    # What tasks hide divides them by package, and one reading takes seconds. So all are searched with nothing
    # hidden, and those that leak again as they are.
    leaky = await _leaks(backend, tasks, shown=True)
    hiding = [task for task in tasks if task.id in leaky and hidden_packages(task)]
    for task in hiding:
        del leaky[task.id]
    return {**leaky, **await _leaks(backend, hiding, shown=False)}


async def _leaks(
    backend: SandboxBackend, tasks: Sequence[Task], *, shown: bool
) -> dict[str, tuple[Leak, ...]]:
    """The leaks of each task; `shown` shows also what tasks hide."""
    by_task: dict[str, dict[str, Leak]] = {}
    by_equipment: dict[Equipment, list[Task]] = {}
    for task in tasks:
        own = replace(equipment_of(task), env=(), proxy=False)
        by_equipment.setdefault(replace(own, hidden=()) if shown else own, []).append(task)
    for equipment, alike in by_equipment.items():
        # Tasks about one package share most of their texts.
        owners: dict[_Text, list[str]] = {}
        for task in alike:
            for text in _texts(task):
                owners.setdefault(text, []).append(task.id)
        for text, leak in await _search(backend, equipment, list(owners)) if owners else ():
            for task_id in owners[text]:
                by_task.setdefault(task_id, {}).setdefault(leak.path, leak)
    return {task_id: tuple(by_path[path] for path in sorted(by_path)) for task_id, by_path in by_task.items()}


async def _search(
    backend: SandboxBackend, equipment: Equipment, texts: Sequence[_Text]
) -> list[tuple[_Text, Leak]]:
    job = {
        "texts": [(text.least, text.lines) for text in texts],
        "endings": sorted({PurePosixPath(text.name).suffix for text in texts}),
        "skipped": [_WORKSPACE],
    }
    try:
        async with backend.open(_LIMITS, equipment) as sandbox:
            result = await sandbox.exec(
                ["python3", "-I", "-c", _program()], stdin=json.dumps(job).encode(), max_output=1 << 26
            )
    except HarnessGymError as error:
        _LOG.warning("What an agent can read was not searched: %s", error)
        return []
    if not result.ok:
        _LOG.warning("What an agent can read was not searched in %s: %s", equipment, result.describe())
        return []
    rows = json.loads(result.stdout)["found"]
    most_first = sorted(rows, key=lambda each: -each[2])
    return [
        (texts[number], Leak(path, texts[number].name, lines, len(texts[number].lines)))
        for number, path, lines in most_first
    ]


def _texts(task: Task) -> Iterator[_Text]:
    """What must not be readable: files of the solution and the tests, and the solution's own lines."""
    solutions = [task.solution, *(step.solution for step in task.steps)]
    gold = [solution for solution in solutions if solution is not None]
    own = {*_telling([*task.files.values(), *(text for step in task.steps for text in step.files.values())])}
    # An image has what the task is about: its files are like the solution's, and readable for a reason.
    copies = {} if task.image else _files(gold)
    for name, text in (*copies.items(), *_tests(task).items()):
        yield from _text(name, _telling([text]), _COPY)
    shown = own | {line.strip() for line in task.instruction.splitlines()}
    yield from _text("the solution", _telling(_files(gold).values()) - shown, _SECRET)


def _files(solutions: Iterable[Solution]) -> dict[str, str]:
    return {name: text for solution in solutions for name, text in solution.files.items()}


def _tests(task: Task) -> Mapping[str, str]:
    """The task's test files that the agent does not get."""
    tests = task.metadata.get("test_files", {})
    of_agent = {*task.files.values()}
    return {name: text for name, text in tests.items() if isinstance(text, str) and text not in of_agent}


def _text(name: str, lines: set[str], least: tuple[float, int]) -> Iterator[_Text]:
    share, fewest = least
    if len(lines) >= fewest:
        yield _Text(name, tuple(sorted(lines)), max(fewest, round(share * len(lines))))


def _telling(texts: Iterable[str]) -> set[str]:
    """Lines that hardly stand in two texts by chance."""
    lines = (line.strip() for text in texts for line in text.splitlines())
    return {line for line in lines if len(line) >= _LINE and not line.startswith(_COMMON)}


def _program() -> str:
    return (files("harnessgym.validation") / "reading.py").read_text()
