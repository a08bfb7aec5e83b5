"""Runs the task's own pytest files against the agent's code, in one process, and cross-checks what comes
back.

The agent's code runs in the process that judges it. What is done about that: nothing of the workspace
configures pytest; results are lines with a nonce on a descriptor of their own; tests with random names that
must fail, and must pass, stand before and after the real ones; ids collected, phases reported, pytest's exit
code and the process's must agree, and a skipped or expected failure is no pass. That finds whoever makes
pytest pass everything, leaves early, skips, or prints.

What it cannot find: code that reads this very process (the nonce is in its memory, the tests are files of its
own user) and forges the results of exactly the real tests, and objects whose `==` is always true. The kinds
`io` and `call` have neither problem, because what they compare with is never in the sandbox; use them where
the answer is data.
"""

import json
import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from importlib.resources import files
from typing import Literal

from pydantic import Field

from harnessgym.errors import TaskError
from harnessgym.grading.check import Check, CheckContext, CheckOutcome
from harnessgym.grading.pytest_report import Canaries, PytestReport, count


class PytestCheck(Check):
    """pytest files of the task, and the ids of every test in them."""

    kind: Literal["pytest"]
    files: tuple[str, ...] = Field(min_length=1)
    """Of the task's `tests/` folder."""
    expect: tuple[str, ...] = Field(min_length=1)
    """Ids of all tests they hold, as pytest writes them: `test_x.py::test_a[1]`. Every one must pass."""
    without: tuple[str, ...] = ()
    """Ids of tests that they hold besides, which are not run: what is skipped, needs the clock, or fails
    with any solution."""
    sources: tuple[str, ...] = ()
    """Folders of the workspace, such as `src`, that the tests import from before anything installed. If
    empty, the workspace itself, after everything installed."""
    timeout_s: float = Field(120.0, gt=0, le=3_600)
    """Seconds for the whole run."""

    def problems(self, files: Collection[str]) -> Sequence[str]:
        """Files that are not there, ids that are twice there, or whose file is not named."""
        found = [
            f"files: {path!r} is not in tests/. Add it, or correct the name."
            for path in self.files
            if path not in files
        ]
        if "conftest.py" in {path.rsplit("/", 1)[-1] for path in files}:
            found.append("tests/: conftest.py is never read. Put its fixtures into the test files.")
        found += [
            f"expect: {test!r} is of no file in `files`. Write `file.py::test_name`."
            for test in self.expect
            if test.split("::")[0] not in self.files or "::" not in test
        ]
        twice = sorted(test for test, times in Counter(self.expect).items() if times > 1)
        found += [f"expect: {test!r} is there twice. Remove one." for test in twice]
        both = sorted({*self.expect} & {*self.without})
        return [*found, *(f"without: {test!r} is in `expect` too. Remove it from one." for test in both)]

    async def run(self, bench: CheckContext) -> CheckOutcome:
        """Every expected test must pass, and the report must be possible."""
        nonce = secrets.token_hex(16)
        canaries = (Canaries.draw(), Canaries.draw())
        job = {
            "nonce": nonce,
            "files": {**bench.files, **{canary.path: canary.text for canary in canaries}},
            "order": [canaries[0].path, *self.files, canaries[1].path],
            "without": self.without,
            "sources": self.sources,
        }
        async with bench.place() as sandbox:
            command = ["python3", "-I", "-B", "-c", _program()]
            result = await sandbox.exec(command, stdin=json.dumps(job).encode(), timeout_s=self.timeout_s)
        report = PytestReport.parse(result.stdout, nonce)
        if result.stdout_truncated:
            return CheckOutcome(
                False,
                tampered="The results pass the limit on output: more was written than the runner writes.",
            )
        if not report.began:
            raise TaskError(
                f"{bench.where}: pytest did not start: {result.describe()}. The image needs python3 with pytest."
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


def _program() -> str:
    return (files("harnessgym.grading.runners") / "testing.py").read_text()
