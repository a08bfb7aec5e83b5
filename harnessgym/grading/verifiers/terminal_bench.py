"""The verifier of terminal-bench tasks: runs `run-tests.sh` in a fresh sandbox and parses its output.

The reward is 1 if the output reports tests and all of them passed. A test that was skipped or failed as
expected did not pass. Output that reports no test is a run that broke off: reward 0, as in terminal-bench,
whatever the cause.

If the tests run the agent's code, it can print a report too. So a second summary, one without pytest's last
line, or one whose lines and last line disagree on how many tests passed, is tampering.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harnessgym.errors import TaskError
from harnessgym.grading.verifier import Opener
from harnessgym.grading.verifiers.test_script import complete, run_script, script_of
from harnessgym.task import Grade, Task

KEY = "terminal_bench"
"""Key of the `VerifierScript` in a task's metadata, which has `parser_name` beside it."""
_HEADER = re.compile(r"^=+ *short test summary info *=+$", re.MULTILINE | re.IGNORECASE)
_COUNTS = r"(?:[0-9]+ [a-z]+(?: [a-z]+)?(?:, )?)+ in [0-9.]+ ?s(?: \([0-9:]+\))?"
_FOOTER = re.compile(rf"^(?:=+ {_COUNTS} =+|{_COUNTS}|(?:=+ )?no tests ran in .*)$", re.MULTILINE)
"""pytest's last line: between signs, or, under `-q`, without."""
_VERY_QUIET = re.compile(
    r"(?<!\S)(?:-[a-zA-Z]*q[a-zA-Z]*q[a-zA-Z]*|(?:-q|--quiet)\s(?:.*\s)?(?:-q|--quiet))(?!\S)"
)
"""Options with which pytest writes no last line."""
_PASSED = re.compile(r"\b([0-9]+) passed\b")
_LINE = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS):? +(.+)")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_BEGIN = "SWEBench results starts here"
_END = "SWEBench results ends here"


@dataclass(frozen=True, slots=True)
class TerminalBenchReport:
    """The report in a script's output."""

    tests: Mapping[str, str]
    """Test to status, in pytest's terms."""
    tampered: str | None = None

    @property
    def passed(self) -> bool:
        """Whether there are tests and all passed."""
        return bool(self.tests) and all(status == "PASSED" for status in self.tests.values())


def pytest_report(output: str, *, has_footer: bool = True) -> TerminalBenchReport:
    """Parses the short test summary that pytest prints with `-rA`.

    `has_footer` is whether an honest run writes a last line behind it.
    """
    text = _ESCAPES.sub("", output.replace("\r\n", "\n"))
    parts = _HEADER.split(text)
    if len(parts) > 2:
        return TerminalBenchReport(
            {},
            f"There are {len(parts) - 1} test summaries in the output of the tests, where pytest writes one.",
        )
    if len(parts) < 2:
        return TerminalBenchReport({})
    footer = _FOOTER.search(parts[1])
    if footer is None and has_footer:
        return TerminalBenchReport(
            {}, "The summary of the tests has no last line, which pytest always writes."
        )
    summary = parts[1][: footer.start()] if footer else parts[1]
    tests = {
        f"{match[2].split(' - ', 1)[0].strip()}": match[1]
        for line in summary.splitlines()
        if (match := _LINE.fullmatch(line))
    }
    counted = footer and _PASSED.search(footer[0])
    passed = sum(status == "PASSED" for status in tests.values())
    expected = int(counted[1]) if counted else 0
    if footer is not None and passed != expected:
        return TerminalBenchReport(
            tests, f"The summary of the tests has {passed} that passed, and its last line says {expected}."
        )
    return TerminalBenchReport(tests)


def swebench_report(output: str, *, has_footer: bool = True) -> TerminalBenchReport:  # noqa: ARG001
    """Parses the one word between the markers of SWE-bench's own runner."""
    text = output.replace("\r\n", "\n")
    if text.count(_BEGIN) != 1 or text.count(_END) != 1:
        return TerminalBenchReport({})
    block = text.partition(_BEGIN)[2].partition(_END)[0].strip()
    return TerminalBenchReport({"tests": "PASSED" if block == "PASSED" else "FAILED"})


PARSERS: Mapping[str, Callable[..., TerminalBenchReport]] = {
    "pytest": pytest_report,
    "swebench": swebench_report,
}
"""A task's `parser_name` to the parser."""


class TerminalBenchVerifier:
    """Runs a terminal-bench task's test script. See the module."""

    async def verify(self, task: Task, workspace: Path, open_sandbox: Opener) -> Grade:  # noqa: ARG002
        """See `Verifier.verify`."""
        test = script_of(task, KEY)
        where = f"Task {task.id!r}"
        name = task.metadata.get("parser_name", "pytest")
        if name not in PARSERS:
            raise TaskError(f"{where}: metadata.parser_name is {name!r}. Known: {', '.join(PARSERS)}.")
        async with open_sandbox() as sandbox:
            run = await run_script(sandbox, test, task)
        if run.ended.timed_out:
            return Grade({"reward": 0.0}, evidence={**run.evidence, "timed_out": True})
        complete(run, test, where)
        scripts = task.metadata.get("test_files", {})
        quiet = any(map(_VERY_QUIET.search, scripts.values()))
        report = PARSERS[name](run.ended.stdout.decode(errors="replace"), has_footer=not quiet)
        counts = {
            status: list(report.tests.values()).count(status)
            for status in dict.fromkeys(report.tests.values())
        }
        return Grade({"reward": float(report.passed)}, report.tampered, {**run.evidence, "tests": counts})


verifier = TerminalBenchVerifier()
