"""Runs a test that is a function of asserts, `check(candidate)`, with the code under test in another sandbox.

1. The test runs with the task's own reference, to record which calls it makes.
2. A fresh sandbox makes these calls to the agent's module.
3. The test runs again in a sandbox without the agent's code; its candidate returns the recorded answers.

So an interpreter that the agent never touched evaluates every assert, on plain data. The test and the
reference are never in the sandbox where the agent's code runs, so there is nothing to forge.

The test must make the same calls to every correct solution. It does not see changes that a solution makes
to its arguments.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import anyio.to_thread
from pydantic import Field

from harnessgym.errors import TaskError
from harnessgym.grading import bytecode
from harnessgym.grading.check import Check, CheckContext, CheckOutcome
from harnessgym.grading.matching import parse_json
from harnessgym.sandbox import ExecResult


class Asserts(Check):
    """A module and its function, a test for it, and a reference that passes the test."""

    kind: Literal["asserts"]
    module: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
    """Module to import from the workspace."""
    function: str = Field(pattern=r"^[A-Za-z_]\w*$")
    """Function of the module, and of the reference."""
    test: str = "test.py"
    """File in the task's `tests/` folder. It runs after the reference and may use its names."""
    reference: str = "reference.py"
    """File in the task's `tests/` folder."""
    entry: str = Field("check", pattern=r"^[A-Za-z_]\w*$")
    """Function of the test that is called with the function under test."""

    def problems(self, files: Collection[str]) -> Sequence[str]:
        """Files that are missing."""
        named = {"test": self.test, "reference": self.reference}
        return [
            f"{key}: {path!r} is not in tests/. Add it." for key, path in named.items() if path not in files
        ]

    async def run(self, context: CheckContext) -> CheckOutcome:
        """Passes if all asserts hold on the values that the module returned."""
        calls = await self._calls(context)
        job = {"role": "answer", "module": self.module, "function": self.function, "calls": calls}
        lines, result = await self._do(context, job)
        if result.stdout_truncated:
            return CheckOutcome(False, "the answers pass the limit on output")
        answers = _by_case(lines, len(calls))
        missing = next((line["missing"] for line in lines if "missing" in line), None)
        if missing is not None:
            return CheckOutcome(
                False, f"{self.module}.{self.function} cannot be imported: {str(missing)[:500]}"
            )
        if None in answers:
            return CheckOutcome(
                False, f"{answers.count(None)} of {len(calls)} calls were not answered: {result.describe()}"
            )
        return await self._decide(context, calls, answers)

    async def _calls(self, context: CheckContext) -> list[Any]:
        """The calls that the test makes. Raises TaskError if the reference does not pass it."""
        lines, result = await self._do(context, self._test_job(context, [], None))
        report: Mapping[str, Any] = next((line for line in lines if "passed" in line or "broken" in line), {})
        if not report.get("passed") or not report["calls"]:
            why = (
                report.get("broken")
                or report.get("why")
                or ("it makes no call" if report else result.describe())
            )
            raise TaskError(
                f"{context.where}: the reference {self.reference} does not pass {self.test}: {why}."
            )
        calls: list[Any] = report["calls"]
        return calls

    async def _decide(self, context: CheckContext, calls: list[Any], answers: list[Any]) -> CheckOutcome:
        lines, result = await self._do(context, self._test_job(context, calls, answers))
        report: Mapping[str, Any] = next((line for line in lines if "passed" in line), {})
        if not report:
            return CheckOutcome(False, f"the test did not finish with these answers: {result.describe()}")
        # A wrong answer can end the test before its last call. It passes only if every call was asked for.
        made = len(report["calls"])
        passed = bool(report["passed"]) and made == len(calls)
        return CheckOutcome(
            passed,
            report["why"] or f"the asserts after {made} of {len(calls)} calls",
            facts={"calls": len(calls)},
        )

    def _test_job(self, context: CheckContext, calls: list[Any], answers: list[Any] | None) -> dict[str, Any]:
        texts = {"reference": context.files[self.reference], "test": context.files[self.test]}
        return {
            "role": "ask",
            "entry": self.entry,
            "function": self.function,
            "calls": calls,
            "answers": answers,
            **texts,
        }

    async def _do(
        self, context: CheckContext, job: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], ExecResult]:
        """Runs a job in a sandbox of its own. Returns the program's lines and the result."""
        env = await anyio.to_thread.run_sync(bytecode.environment, context.workspace)
        async with context.open_sandbox() as sandbox:
            result = await sandbox.exec(
                bytecode.command(bytecode.runner("asserting")),
                stdin=json.dumps(job).encode(),
                env=env,
                timeout_s=self.timeout_s,
            )
        lines = [parsed[0] for line in result.stdout.splitlines() if (parsed := parse_json(line)) is not None]
        object_lines = [line for line in lines if isinstance(line, dict)]
        if not any("began" in line for line in object_lines) and not result.stdout_truncated:
            raise TaskError(
                f"{context.where}: the testing program did not start: {result.describe()}. The image needs "
                "python3."
            )
        return object_lines, result


def _by_case(replies: Sequence[Mapping[str, Any]], count: int) -> list[Any]:
    """The first answer to each call; None where there is none."""
    # The agent's code may print to the same stream. Lines with a number out of range, or a second answer to
    # one call, are dropped.
    answers: list[Any] = [None] * count
    for line in replies:
        number = line.get("case")
        if (
            isinstance(number, int)
            and not isinstance(number, bool)
            and 0 <= number < count
            and answers[number] is None
        ):
            answers[number] = _shallow(line)
    return answers


def _shallow(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The answer, or None if it is nested too deep to be encoded again."""
    try:
        json.dumps(answer)
    except RecursionError:
        return None
    return answer
