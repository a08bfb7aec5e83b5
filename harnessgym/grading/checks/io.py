"""Runs a command of the workspace for each case and compares its output on this machine.

The expected output never enters the sandbox, so there is nothing to forge.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Self

import anyio.to_thread
from pydantic import Field, model_validator

from harnessgym.config import Config
from harnessgym.errors import TaskError
from harnessgym.grading import bytecode
from harnessgym.grading.check import Check, CheckContext, CheckOutcome
from harnessgym.grading.matching import Match, matches, parse_json
from harnessgym.sandbox import Sandbox


class IoCase(Config):
    """One run of the command."""

    args: tuple[str, ...] = ()
    """Further arguments."""
    stdin: str = ""
    files: Mapping[str, str] = Field(default_factory=dict)
    """Files to write into the workspace before the run, relative path to text. Later cases see them too."""
    stdout: str | None = None
    """The output to expect; None accepts any."""
    exit_code: int | None = 0
    """The exit code to expect. None accepts any, as long as the command ends by itself."""


class Io(Check):
    """A command, its cases, and how to compare output. All cases run in one sandbox, in order.

    After a case that times out, the remaining ones are not run and count as failed.
    """

    kind: Literal["io"]
    probe: tuple[str, ...] = ()
    """A command that succeeds if the image or machine has what is needed. It runs before the agent's code."""
    compile: tuple[str, ...] = ()
    """A command that must succeed before the cases."""
    compile_timeout_s: float = Field(60.0, gt=0, le=3_600)
    command: tuple[str, ...] = Field(min_length=1)
    cases: tuple[IoCase, ...] = Field(min_length=1)
    match: Match = "stripped"
    tolerance: float = Field(1e-6, ge=0)
    partial: bool = False
    """Whether the cases that pass count as a part of a weighted reward; else all must pass."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        for number, case in enumerate(self.cases):
            if case.stdout is None and case.exit_code is None:
                raise ValueError(f"cases[{number}] expects nothing: give it a `stdout` or an `exit_code`")
            if self.match == "json" and case.stdout is not None and parse_json(case.stdout) is None:
                raise ValueError(f"cases[{number}].stdout is no JSON, and `match` is json")
        return self

    async def run(self, context: CheckContext) -> CheckOutcome:
        """Passes if every case passes."""
        wrong: list[str] = []
        env = await anyio.to_thread.run_sync(bytecode.environment, context.workspace)
        async with context.open_sandbox() as sandbox:
            await self._probe(sandbox, context.where)
            if problem := await self._compile(sandbox, env):
                return CheckOutcome(False, problem)
            for number, case in enumerate(self.cases):
                problem, hung = await self._try(sandbox, case, env)
                if problem:
                    wrong.append(f"case {number}: {problem}")
                # Each further case would hang too, and cost its whole timeout.
                if hung:
                    wrong += [f"case {skipped}: not run" for skipped in range(number + 1, len(self.cases))]
                    break
        good = len(self.cases) - len(wrong)
        detail = "\n".join([f"{good} of {len(self.cases)} cases", *wrong[:3]])
        return CheckOutcome(not wrong, detail, part=good / len(self.cases) if self.partial else None)

    async def _probe(self, sandbox: Sandbox, where: str) -> None:
        if not self.probe:
            return
        result = await sandbox.exec(self.probe, timeout_s=self.compile_timeout_s)
        if not result.ok:
            raise TaskError(f"{where}: the sandbox lacks what the program needs: {result.describe()}.")

    async def _compile(self, sandbox: Sandbox, env: Mapping[str, str]) -> str:
        if not self.compile:
            return ""
        result = await sandbox.exec(self.compile, env=env, timeout_s=self.compile_timeout_s)
        return "" if result.ok else f"it does not compile: {result.describe()}"

    async def _try(self, sandbox: Sandbox, case: IoCase, env: Mapping[str, str]) -> tuple[str, bool]:
        """Runs one case. Returns what is wrong, and whether it timed out."""
        for path, text in case.files.items():
            await sandbox.write(path, text.encode())
        command: Sequence[str] = (*self.command, *case.args)
        stdin = case.stdin.encode()
        result = await sandbox.exec(command, stdin=stdin, env=env, timeout_s=self.timeout_s)
        ended = not result.timed_out and result.exit_code is not None
        if not ended or case.exit_code not in (None, result.exit_code):
            return f"it did not end as expected: {result.describe()}", result.timed_out
        if case.stdout is None:
            return "", False
        if result.stdout_truncated or not matches(result.stdout, case.stdout, self.match, self.tolerance):
            return f"it printed something else: {result.stdout[:200].decode(errors='replace')!r}", False
        return "", False
