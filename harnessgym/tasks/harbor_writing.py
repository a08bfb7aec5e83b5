"""Writes tasks as Harbor directories, which `harnessgym.tasks.harbor` and Harbor itself can read.

Only for tasks with checks that run without HarnessGym: `io`, `files`, `command` and `pytest`. They become a
test script and a program that uses only the standard library. So the image must have python3, and pytest for
`pytest` checks.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import tomli_w

from harnessgym.errors import TaskError
from harnessgym.grading.check import Check, read_checks
from harnessgym.grading.checks.command import CommandCheck
from harnessgym.grading.checks.files import Files
from harnessgym.grading.checks.io import Io
from harnessgym.grading.checks.pytests import PytestCheck
from harnessgym.sandbox import CONTEXT
from harnessgym.task import Solution, Task
from harnessgym.tasks.native import GRADER
from harnessgym.tasks.writing import folder_name, lay_texts

_IMAGE = "harnessgym/python"
_WORKDIR = "/app"
_SAID = frozenset({
    "id", "instruction", "split", "seed", "files", "image", "limits", "network", "needs", "setup",
    "artifacts", "grader",
    "solution", "metadata", "verifier", "env",
})  # fmt: skip
"""Fields of a task that a Harbor directory can express. A task that sets others is refused."""
_WRITABLE = {"io": Io, "files": Files, "command": CommandCheck, "pytest": PytestCheck}
_PROGRAM = "check.py"
_JUDGE = (
    "pytests.py",
    "relaying.py",
    "starting.py",
    "testing.py",
    "canaries.py",
    "pytest_report.py",
    "outcome.py",
)
"""Further files that `pytest` checks need."""
_TAKEN = (
    "test.sh",
    _PROGRAM,
    "checks.json",
    "matching.py",
    "file_rules.py",
    *_JUDGE,
    "Dockerfile",
    "docker-compose.yaml",
)
_TEST = f"""#!/bin/sh
exec python3 -I -B "$(dirname "$0")/{_PROGRAM}"
"""
_LEAST_S = 60.0


class HarborWriter:
    """Writes Harbor directories."""

    def write(self, task: Task, folder: Path) -> Sequence[str]:
        """See `harnessgym.tasks.writing.TaskWriter`."""
        checks = _checks(task)
        notes = list(_notes(task, checks))
        lay_texts(
            folder,
            {
                "instruction.md": task.instruction.strip() + "\n",
                "task.toml": tomli_w.dumps(_table(task, checks)),
            },
        )
        lay_texts(folder / "environment", {"Dockerfile": _dockerfile(task)})
        lay_texts(folder / "environment" / "files", task.files)
        lay_texts(
            folder / "tests", {**task.metadata.get("test_files", {}), **_program(task, checks)}, {"test.sh"}
        )
        if task.solution is not None:
            lay_texts(folder / "solution", {"solve.sh": _solve(task.solution)}, {"solve.sh"})
            lay_texts(folder / "solution" / "files", task.solution.files)
        return notes


def _checks(task: Task) -> Sequence[Check]:
    """The task's checks. Raises TaskError for a task that a directory cannot express."""
    # Compare with a plain task, so that a field that is added to `Task` later is refused and not dropped.
    if task.grader not in (GRADER, "checks"):
        raise TaskError(f"It is judged by {task.grader!r}; only checks ({GRADER}) can become a test script.")
    plain = Task(task.id, task.instruction)
    unsaid = [
        each.name
        for each in fields(Task)
        if each.name not in _SAID and getattr(task, each.name) != getattr(plain, each.name)
    ]
    if unsaid:
        raise TaskError(f"It has {', '.join(unsaid)}, which is not written to a Harbor directory.")
    if (task.image or "").startswith(CONTEXT):
        raise TaskError(f"Its image is built from {task.image}, a folder of this machine. Name an image.")
    if not task.instruction.strip():
        raise TaskError("It has no instruction.")
    tests = task.metadata.get("test_files", {})
    checks = read_checks(task.metadata.get("tests", ()), tests, f"Task {task.id!r}")
    for number, check in enumerate(checks):
        if type(check) is not _WRITABLE.get(check.kind):
            raise TaskError(
                f"Its check tests[{number}] is of the kind {check.kind!r}, which needs HarnessGym while it "
                f"runs. Kinds that become a test script: {', '.join(_WRITABLE)}."
            )
    clash = sorted(set(tests) & set(_TAKEN))
    if clash:
        raise TaskError(f"Its test file {clash[0]} has a name that a Harbor directory needs. Rename it.")
    return checks


def _notes(task: Task, checks: Sequence[Check]) -> Sequence[str]:
    """A note for everything that the format cannot express, or expresses differently."""
    pytest = any(isinstance(check, PytestCheck) for check in checks)
    needed = (
        "python3 of 3.10 or later with pytest, which users other than root can run" if pytest else "python3"
    )
    conditional_notes = (
        (task.split != "train", f"split: Harbor has none; {task.split!r} is kept in the metadata."),
        (task.needs, "needs: Harbor has no capabilities; they are kept in the metadata."),
        (
            task.setup.hosts,
            "setup.hosts: the commands become lines of the Dockerfile, where builds reach the whole network.",
        ),
        (
            task.verifier == "separate",
            "verifier: Harbor tests in the agent's container, where what is expected can be read.",
        ),
        (task.image, f"image: {task.image} must have {needed}: the tests are run with it."),
        (
            pytest,
            (
                "pytest: tests run in the agent's container, as a user of their own only if the script is "
                "run as root."
            ),
        ),
    )
    return [note for applies, note in conditional_notes if applies]


def _table(task: Task, checks: Sequence[Check]) -> dict[str, Any]:
    """`task.toml`."""
    metadata = {"split": task.split, "seed": task.seed, "needs": sorted(task.needs), "id": task.id}
    return {
        "schema_version": "1.4",
        "task": {"name": f"harnessgym/{folder_name(task.id)}"},
        "metadata": {key: value for key, value in metadata.items() if value},
        "agent": {"timeout_sec": float(task.limits.wall_s)},
        "verifier": {"timeout_sec": max(_LEAST_S, 2 * sum(_seconds(check) for check in checks))},
        "environment": {
            "cpus": task.limits.cpus,
            "memory_mb": task.limits.memory_mb,
            "storage_mb": task.limits.disk_mb,
            "network_mode": "no-network",
            "workdir": _WORKDIR,
            "env": dict(task.env),
        },
    }


def _seconds(check: Check) -> float:
    """The longest that a check may take, in seconds."""
    return (
        check.timeout_s * len(check.cases) + check.compile_timeout_s
        if isinstance(check, Io)
        else check.timeout_s
    )


def _dockerfile(task: Task) -> str:
    lines = [
        f"FROM {task.image or _IMAGE}",
        f"WORKDIR {_WORKDIR}",
        *(["COPY files/ ./"] if task.files else []),
    ]
    return "\n".join([*lines, *(f"RUN {json.dumps(command)}" for command in task.setup.run)]) + "\n"


def _program(task: Task, checks: Sequence[Check]) -> Mapping[str, str]:
    """The test script and the files that it needs."""
    plan = {
        "score": task.metadata.get("score", "all"),
        "artifacts": task.artifacts,
        "checks": [check.model_dump(mode="json") for check in checks],
        "test_files": sorted(task.metadata.get("test_files", {})),
    }
    modules = {
        _PROGRAM: _text("runners/contained.py"),
        "matching.py": _text("matching.py"),
        "file_rules.py": _text("file_rules.py"),
    }
    if any(isinstance(check, PytestCheck) for check in checks):
        runners = {"pytests.py", "relaying.py", "starting.py", "testing.py"}
        modules |= {name: _text(f"runners/{name}" if name in runners else name) for name in _JUDGE}
    return {"test.sh": _TEST, "checks.json": json.dumps(plan, indent=1) + "\n", **modules}


def _text(path: str) -> str:
    """The text of a grading module, changed to import its neighbours from its own folder."""
    return (
        (resources("harnessgym.grading") / path)
        .read_text(encoding="utf-8")
        .replace("from harnessgym.grading.", "from ")
    )


def _solve(solution: Solution) -> str:
    lay = ['cp -R "$(dirname "$0")/files/." .'] if solution.files else []
    return "\n".join(["#!/bin/sh", "set -e", *lay, *(shlex.join(command) for command in solution.run)]) + "\n"
