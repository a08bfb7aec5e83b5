"""Runs the task's own pytest files against the agent's code, in one process, and cross-checks the results.

The agent's code runs in the process that judges it. These are the defences:

- Nothing in the workspace configures pytest, and nothing compiled there is read.
- Another process signs the results (`runners/relaying.py`). Its memory and descriptors are closed to the
  process of the tests, which reports to it through a pipe.
- Tests that must fail, and that must pass, are among the real ones and look like them
  (`grading/canaries.py`).
- Collected ids, reported phases, pytest's exit code and the process's exit code must agree.
- A skipped test or an expected failure is no pass.

These find code that makes pytest pass everything, exits early, skips tests, or prints forged results.

They do not find code that forges reports in its own process before these are sent, and knows which of the
tests are the real ones; nor objects whose `==` is always true where no canary meets them; nor a table of what
the tests expect. Judging by value does (`harnessgym.grading.by_value`): a task or a run can ask for it, and a
passed check is then necessary and not sufficient. The kinds `io` and `call` need no such thing, because the
expected values are never in the sandbox. Use them where the answer is data.
"""

import json
import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from typing import ClassVar, Literal

import anyio.to_thread
from pydantic import Field

from harnessgym.errors import TaskError
from harnessgym.grading import bytecode
from harnessgym.grading.canaries import Canaries
from harnessgym.grading.check import Check, CheckContext, CheckOutcome
from harnessgym.grading.pytest_report import PytestReport, count
from harnessgym.task import Integrity


class PytestCheck(Check):
    """pytest files of the task, and the ids of all tests in them."""

    integrity: ClassVar[Integrity] = "in_process"
    kind: Literal["pytest"]
    files: tuple[str, ...] = Field(min_length=1)
    """Files in the task's `tests/` folder."""
    expect: tuple[str, ...] = Field(min_length=1)
    """Ids of all tests in them, as pytest writes them: `test_x.py::test_a[1]`. Every one must pass."""
    without: tuple[str, ...] = ()
    """Ids of further tests in them that are not run: they skip, need the clock, or fail with any solution."""
    sources: tuple[str, ...] = ()
    """Folders of the workspace, such as `src`, that come before installed packages on the import path. If
    empty, the workspace itself comes after them."""
    timeout_s: float = Field(120.0, gt=0, le=3_600)
    """Seconds for the whole run."""

    def problems(self, files: Collection[str]) -> Sequence[str]:
        """Missing files, duplicate ids, and ids whose file is not in `files`."""
        problems = [
            f"files: {path!r} is not in tests/. Add it, or correct the name."
            for path in self.files
            if path not in files
        ]
        if "conftest.py" in {path.rsplit("/", 1)[-1] for path in files}:
            problems.append("tests/: conftest.py is never read. Put its fixtures into the test files.")
        problems += [
            f"expect: {test!r} is not in a file of `files`. Write `file.py::test_name`."
            for test in self.expect
            if test.split("::")[0] not in self.files or "::" not in test
        ]
        twice = sorted(test for test, times in Counter(self.expect).items() if times > 1)
        problems += [f"expect: {test!r} is there twice. Remove one." for test in twice]
        both = sorted({*self.expect} & {*self.without})
        return [*problems, *(f"without: {test!r} is in `expect` too. Remove it from one." for test in both)]

    async def run(self, context: CheckContext) -> CheckOutcome:
        """Passes if every expected test passes and an honest run could have written the report."""
        nonce = secrets.token_hex(16)
        canaries = await anyio.to_thread.run_sync(Canaries.draw, context.files, self.files, self.expect)
        tests = {
            "files": {**context.files, **canaries.files},
            "order": canaries.order,
            "without": self.without,
            "sources": self.sources,
        }
        programs = [bytecode.runner("starting"), bytecode.runner("testing")]
        job = json.dumps({"nonce": nonce, "programs": programs, "tests": tests}).encode()
        env = await anyio.to_thread.run_sync(bytecode.environment, context.workspace)
        async with context.open_sandbox() as sandbox:
            command = ["python3", "-I", "-B", "-c", bytecode.runner("relaying")]
            result = await sandbox.exec(command, stdin=job, env=env, timeout_s=self.timeout_s)
        report = PytestReport.parse(result.stdout, nonce)
        # The order decides who is to blame. Too much output is the agent's doing even if the run did not
        # begin; a run that never began is the image's fault; everything after that is a valid failure.
        if result.stdout_truncated:
            return CheckOutcome(
                False,
                tampered="The results pass the limit on output: more was written than the runner writes.",
            )
        if not report.began:
            raise TaskError(
                f"{context.where}: pytest did not start: {result.describe()}. The image needs python3 with "
                "pytest."
            )
        if result.timed_out:
            return CheckOutcome(False, f"the tests did not end: {result.describe()}")
        if report.ended is None and result.exit_code != 0:
            return CheckOutcome(False, f"the code under test ended the run: {result.describe()}")
        if report.ended in ("2", "3") and report.ended == str(result.exit_code):
            return CheckOutcome(
                False, f"the code under test stopped pytest: {report.uncollected[:1] or result.describe()}"
            )
        return count(report, self.expect, canaries, result.exit_code)
