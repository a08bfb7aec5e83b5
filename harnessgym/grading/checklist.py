"""The verifier of tasks whose tests are a list of checks.

Each check runs in a sandbox of its own. The outcomes are joined into one reward. Tasks name their grader as
`harnessgym.grading.checklist:verifier`, in stored runs and in the digests of checked task sets too.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harnessgym.grading.check import Check, CheckContext, CheckOutcome, read_checks
from harnessgym.grading.verifier import Opener
from harnessgym.task import Grade, Integrity, Task

GRADER = "harnessgym.grading.checklist:verifier"
"""The name of this grader."""


class Checklist:
    """Reads `tests`, `test_files` and `score` of a task's metadata.

    Score "all" is 1 if every check passed, else 0. Score "weighted" is the weight of the checks that passed
    over the weight of all.
    """

    async def verify(self, task: Task, workspace: Path, open_sandbox: Opener) -> Grade:
        """See `Verifier.verify`. Stops at the first check that finds tampering."""
        files = task.metadata.get("test_files", {})
        checks = read_checks(task.metadata.get("tests", ()), files, f"Task {task.id!r}")
        outcomes: list[CheckOutcome] = []
        for number, check in enumerate(checks):
            context = CheckContext(
                workspace, open_sandbox, files, f"Task {task.id!r}, test {_name(check, number)}"
            )
            outcomes.append(await check.run(context))
            if outcomes[-1].tampered is not None:
                break
        tampered = outcomes[-1].tampered
        reward = 0.0 if tampered else _reward(task, checks, outcomes)
        evidence = {"checks": _evidence(checks, outcomes)}
        return Grade({"reward": reward}, tampered, evidence, integrity_of_checks(task, checks))


def integrity_of_checks(task: Task, checks: Sequence[Check]) -> Integrity:
    """Where all checks must pass, one that compares values is enough. The others only take a reward away."""
    by_value = [check.integrity == "by_value" for check in checks]
    enough = any if task.metadata.get("score", "all") == "all" else all
    return "by_value" if enough(by_value) else "in_process"


def _reward(task: Task, checks: Sequence[Check], outcomes: Sequence[CheckOutcome]) -> float:
    if task.metadata.get("score", "all") == "all":
        return float(all(outcome.passed for outcome in outcomes))
    parts = [float(outcome.passed) if outcome.part is None else outcome.part for outcome in outcomes]
    return sum(check.weight * part for check, part in zip(checks, parts, strict=True)) / sum(
        check.weight for check in checks
    )


def _evidence(checks: Sequence[Check], outcomes: Sequence[CheckOutcome]) -> list[dict[str, Any]]:
    return [
        {
            "name": _name(check, number),
            "passed": outcome.passed,
            "detail": outcome.detail[:2_000],
            **outcome.facts,
        }
        for number, (check, outcome) in enumerate(zip(checks, outcomes, strict=False))
    ]


def _name(check: Check, number: int) -> str:
    return check.name or f"{check.kind} {number}"


verifier = Checklist()
