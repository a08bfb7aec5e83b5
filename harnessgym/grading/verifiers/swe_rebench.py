"""The verifier of SWE-rebench tasks: exactly the expected tests must pass, compared by name.

Names are compared without the durations that runners append. The exit code of the tests' commands does not
count, because the data set's lists were made without it. It is in the evidence.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harnessgym.errors import TaskError
from harnessgym.grading.change import ATTEMPTS, apply, handed_in, restore
from harnessgym.grading.log import LogStatus, Statuses, parser_named
from harnessgym.grading.patches import patch_bytes, patched_paths
from harnessgym.grading.verifier import Opener
from harnessgym.grading.verifiers.eval_log import END, START
from harnessgym.grading.verifiers.evaluation import evaluate
from harnessgym.grading.verifiers.swe_bench import doubted, no_grade, shown_patch
from harnessgym.sandbox import Sandbox
from harnessgym.task import Grade, Task

_RECOUNTED = "git apply -v --3way --recount --ignore-space-change --whitespace=nowarn"
"""The command with which the data set's own harness applies patches."""
_DURATIONS = (
    re.compile(r"\s*\[\s*\d+(?:\.\d+)?\s*(?:ms|s)\s*\]\s*$", re.IGNORECASE),
    re.compile(r"\s+in\s+\d+(?:\.\d+)?\s+(?:msec|sec)\b", re.IGNORECASE),
    re.compile(r"\s*\(\s*\d+(?:\.\d+)?\s*(?:ms|s)\s*\)\s*$", re.IGNORECASE),
)
_SHOWN = 50


class SweRebenchVerifier:
    """Reads `metadata["swe_rebench"]`; see `harnessgym.tasks.swe_rebench`."""

    async def verify(self, task: Task, workspace: Path, open_sandbox: Opener) -> Grade:  # noqa: ARG002
        """See `Verifier.verify`."""
        async with open_sandbox() as sandbox:
            change = await handed_in(task, sandbox)
            if change.problem or not change.patch.strip():
                return no_grade(change.problem or "nothing was changed", change.patch)
            return await _graded(task, sandbox, change.patch)


def without_duration(name: str) -> str:
    """A test's name without its duration."""
    for pattern in _DURATIONS:
        name = pattern.sub("", name)
    return name.strip()


def passed_names(statuses: Mapping[str, LogStatus]) -> frozenset[str]:
    """The tests that passed. If two names differ only in their durations, the last report wins."""
    last = {without_duration(name): status for name, status in statuses.items()}
    return frozenset(name for name, status in last.items() if status is LogStatus.PASSED)


def matches(statuses: Statuses, fail_to_pass: Iterable[str], pass_to_pass: Iterable[str]) -> bool:
    """Whether the tests that passed are exactly those of both lists."""
    return passed_names(statuses) == frozenset(map(without_duration, (*fail_to_pass, *pass_to_pass)))


def script_of(commands: Iterable[str]) -> str:
    """A script that marks its output and runs the commands until one fails."""
    run = "\n".join(commands)
    head = "#!/bin/bash\nexport _JAVA_OPTIONS=-Djava.net.preferIPv6Addresses=false"
    return f"{head}\necho '{START}'\n(\nset -e\n{run}\n)\necho '{END}'\n"


async def _graded(task: Task, sandbox: Sandbox, patch: bytes) -> Grade:
    spec = task.metadata.get("swe_rebench")
    if not isinstance(spec, Mapping):
        raise TaskError(
            f"Task {task.id!r} has no metadata['swe_rebench'], which says what is expected of its tests."
        )
    how = await apply(task, sandbox, patch)
    if how is None:
        return no_grade("the patch does not apply", patch)
    await restore(task, sandbox, patched_paths(spec["test_patch"]))
    if await apply(task, sandbox, patch_bytes(spec["test_patch"]), (_RECOUNTED, *ATTEMPTS)) is None:
        return no_grade("the task's tests do not apply over what was changed", patch)
    script = script_of(spec["test_cmd"])
    run = await evaluate(task, sandbox, script, parser_named(spec["log_parser"]), exit_code_decides=False)
    problem = run.reading.problem
    code = run.reading.exit_code
    grade = _grade(spec, run.reading.statuses, patch, problem=problem, exit_code=code, log=run.tail)
    return (
        await doubted(task, sandbox, grade, script, spec, exit_code_decides=False)
        if grade.rewards["reward"]
        else grade
    )


def _grade(spec: Mapping[str, Any], statuses: Statuses, patch: bytes, **more: Any) -> Grade:
    passed = passed_names(statuses)
    f2p, p2p = ({without_duration(name) for name in spec[key]} for key in ("fail_to_pass", "pass_to_pass"))
    rewards = {
        "reward": float(matches(statuses, f2p, p2p)),
        "f2p": len(f2p & passed) / len(f2p) if f2p else 1.0,
        "p2p": len(p2p & passed) / len(p2p) if p2p else 1.0,
    }
    evidence = {
        "missing": sorted((f2p | p2p) - passed)[:_SHOWN],
        "not_expected": sorted(passed - f2p - p2p)[:_SHOWN],
        **more,
        **shown_patch(patch),
    }
    return Grade(rewards, evidence=evidence)


verifier = SweRebenchVerifier()
