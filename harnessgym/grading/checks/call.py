"""Calls functions of a module in a sandbox with JSON arguments and compares the JSON results on this machine.

The expected results never enter the sandbox, so there is nothing to read and nothing to forge. An object that
equals everything, a patched `assert` or an early exit is just a wrong answer.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import anyio.to_thread
from pydantic import Field, model_validator

from harnessgym.config import Config
from harnessgym.errors import TaskError
from harnessgym.grading import bytecode
from harnessgym.grading.check import Check, CheckContext, CheckOutcome
from harnessgym.grading.matching import parse_json, same


class CallCase(Config):
    """One call."""

    function: str = ""
    """Function to call. If empty, the check's."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = Field(default_factory=dict)
    result: Any = None
    """Expected return value, as JSON: a tuple is a list. To expect None, leave it out: TOML has no null."""
    raises: str = ""
    """Name of the exception to expect instead, or of a base class of it."""


class CallCheck(Check):
    """A module and calls of its functions, in order and all in one process.

    A crash fails the calls after it.
    """

    kind: Literal["call"]
    module: str = Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
    function: str = ""
    cases: tuple[CallCase, ...] = Field(min_length=1)
    tolerance: float = Field(0.0, ge=0)
    """See `harnessgym.grading.matching.matches`."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        for number, case in enumerate(self.cases):
            if not (case.function or self.function):
                raise ValueError(f"cases[{number}] names no function, and the check has none either")
            if case.raises and "result" in case.model_fields_set:
                raise ValueError(f"cases[{number}] expects a result and an exception: choose one")
            try:
                json.dumps([case.args, case.kwargs, case.result], allow_nan=False)
            except (TypeError, ValueError) as error:
                raise ValueError(f"cases[{number}] holds what JSON cannot: {error}") from error
        return self

    async def run(self, context: CheckContext) -> CheckOutcome:
        """Passes if every call gives the expected answer."""
        cases = [
            {"function": case.function or self.function, "args": case.args, "kwargs": dict(case.kwargs)}
            for case in self.cases
        ]
        job = json.dumps({"module": self.module, "cases": cases}).encode()
        env = await anyio.to_thread.run_sync(bytecode.environment, context.workspace)
        async with context.open_sandbox() as sandbox:
            program = bytecode.command(bytecode.runner("calling"))
            result = await sandbox.exec(program, stdin=job, env=env, timeout_s=self.timeout_s)
        lines = [parsed[0] for line in result.stdout.splitlines() if (parsed := parse_json(line)) is not None]
        answers = [line for line in lines if isinstance(line, dict)]
        if result.stdout_truncated:
            return CheckOutcome(False, "the answers pass the limit on output")
        if not any("began" in answer for answer in answers):
            raise TaskError(
                f"{context.where}: the calling program did not start: {result.describe()}. The image needs "
                "python3."
            )
        broken = next((answer["broken"] for answer in answers if "broken" in answer), None)
        if broken is not None:
            return CheckOutcome(False, f"{self.module} cannot be imported: {broken}")
        return self._compare(answers, "" if result.ok else result.describe())

    def _compare(self, answers: Sequence[Mapping[str, Any]], end: str) -> CheckOutcome:
        # The first answer to a case counts. The agent's code may print lines of its own, which gains
        # nothing: it never sees the expected results.
        by_case: dict[object, Mapping[str, Any]] = {}
        for answer in answers:
            number = answer.get("case")
            if isinstance(number, int):
                by_case.setdefault(number, answer)
        wrong = [
            f"case {number}: {problem}"
            for number, case in enumerate(self.cases)
            if (problem := _problem(case, by_case.get(number), self.tolerance))
        ]
        counted = f"{len(self.cases) - len(wrong)} of {len(self.cases)} calls"
        return CheckOutcome(not wrong, "\n".join([counted, *wrong[:3], *([end] if end else [])]))


def _problem(case: CallCase, answer: Mapping[str, Any] | None, tolerance: float) -> str:
    if answer is None:
        return "it gave no answer"
    if "result" not in answer:
        raised = answer.get("raised")
        if case.raises and isinstance(raised, list) and case.raises in raised:
            return ""
        name = raised[0] if isinstance(raised, list) and raised else "nothing"
        return f"it raised {name}: {str(answer.get('message', ''))[:200]}"
    if case.raises:
        return f"it raised no {case.raises}"
    # The round trip turns tuples into lists, as JSON did with the answer.
    expected = json.loads(json.dumps(case.result))
    return "" if same(answer["result"], expected, tolerance) else f"it gave {_shown(answer['result'])}"


def _shown(value: Any) -> str:
    try:
        return json.dumps(value)[:200]
    except RecursionError:
        return "something very deep"
