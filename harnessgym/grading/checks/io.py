"""Runs a command of the workspace per case and compares what it prints, on this machine. There is nothing to forge."""

from collections.abc import Mapping, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from harnessgym.config import Config
from harnessgym.grading.check import Bench, Check, Outcome, ending
from harnessgym.grading.matching import Match, matches, parse_json
from harnessgym.sandbox import Sandbox


class IoCase(Config):
    """One run of the command."""

    args: tuple[str, ...] = ()
    """Further arguments."""
    stdin: str = ""
    files: Mapping[str, str] = Field(default_factory=dict)
    """Relative path to text, laid into the workspace before the run. They stay for the cases after it."""
    stdout: str | None = None
    """What it must print; None is anything."""
    exit_code: int | None = 0
    """How it must end; None is by itself, in any way."""


class Io(Check):
    """A command, its cases, and how output is compared. All cases run in one sandbox, in order."""

    kind: Literal["io"]
    command: tuple[str, ...] = Field(min_length=1)
    cases: tuple[IoCase, ...] = Field(min_length=1)
    match: Match = "stripped"
    tolerance: float = Field(1e-6, ge=0)

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        for number, case in enumerate(self.cases):
            if case.stdout is None and case.exit_code is None:
                raise ValueError(f"cases[{number}] expects nothing: give it a `stdout` or an `exit_code`")
            if self.match == "json" and case.stdout is not None and parse_json(case.stdout) is None:
                raise ValueError(f"cases[{number}].stdout is no JSON, and `match` is json")
        return self

    async def run(self, bench: Bench) -> Outcome:
        """Every case must pass."""
        wrong: list[str] = []
        async with bench.place() as sandbox:
            for number, case in enumerate(self.cases):
                problem = await self._try(sandbox, case)
                if problem:
                    wrong.append(f"case {number}: {problem}")
        counted = f"{len(self.cases) - len(wrong)} of {len(self.cases)} cases"
        return Outcome(not wrong, "\n".join([counted, *wrong[:3]]))

    async def _try(self, sandbox: Sandbox, case: IoCase) -> str:
        for path, text in case.files.items():
            await sandbox.write(path, text.encode())
        command: Sequence[str] = (*self.command, *case.args)
        result = await sandbox.exec(command, stdin=case.stdin.encode(), timeout_s=self.timeout_s)
        ended = not result.timed_out and result.exit_code is not None
        if not ended or case.exit_code not in (None, result.exit_code):
            return f"it ended otherwise: {ending(result)}"
        if case.stdout is None:
            return ""
        if result.stdout_truncated or not matches(result.stdout, case.stdout, self.match, self.tolerance):
            return f"it printed something else: {result.stdout[:200].decode(errors='replace')!r}"
        return ""
