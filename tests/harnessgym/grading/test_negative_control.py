"""The failing test that is planted: where it can stand, and what gives a forger away."""

import subprocess
import sys

import pytest

from harnessgym.errors import SandboxError
from harnessgym.grading.log import LogStatus, parser_named
from harnessgym.grading.negative_control import planted
from harnessgym.grading.verifiers.eval_log import END, START, Reading, instrumented, read_log

RUN = f"{sys.executable} -m pytest -rA -p no:cacheprovider t.py"
SCRIPT = f"set -x\n: '{START}'\n{{run}}\n: '{END}'\n"
HONEST = SCRIPT.format(run=RUN)
TESTS = ("t.py::test_a",)


@pytest.mark.parametrize(
    ("script", "parser", "tests"),
    [
        (HONEST, "parse_log_gotest", TESTS),
        (HONEST, "parse_log_pytest", ("test_a (m.C)",)),
        (HONEST, "parse_log_pytest", ()),
        (SCRIPT.format(run="pytest t.py::test_a"), "parse_log_pytest", TESTS),
        (SCRIPT.format(run="pytest -x t.py"), "parse_log_pytest", TESTS),
        (SCRIPT.format(run="pytest -k a t.py"), "parse_log_pytest", TESTS),
        ("pytest t.py", "parse_log_pytest", TESTS),
    ],
)
def test_where_it_cannot_stand_nothing_is_planted(script, parser, tests):
    assert planted(script, parser, tests) is None


MODULE = "def test_a():\n    assert True"
GROUP = "import unittest\nclass ShapeCases(unittest.TestCase):\n    def test_a(self):\n        assert True\n"
MAIN = MODULE + '\n\nif __name__ == "__main__":\n    test_a()'


@pytest.mark.parametrize(
    ("text", "test"),
    [(MODULE, "t.py::test_a[x-1]"), (GROUP, "t.py::ShapeCases::test_a"), (MAIN, "t.py::test_a")],
    ids=["function", "group", "main"],
)
def test_an_honest_run_reports_its_failure(tmp_path, text, test):
    (tmp_path / "t.py").write_text(text)
    found = planted(HONEST, "parse_log_pytest", (test,))
    done = subprocess.run(
        ["bash", "-c", instrumented(found.script, "x")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    reading = read_log(done.stdout, parser_named("parse_log_pytest"), "x")
    assert found.missed(reading) is None, done.stdout
    assert len(reading.statuses) == 2
    assert found.path == "t.py"


def test_who_does_not_report_it_is_found():
    found = planted(HONEST, "parse_log_pytest", TESTS)
    assert "was not reported" in found.missed(Reading({"t.py::test_a": LogStatus.PASSED}, exit_code=0))
    assert "was not reported" in found.missed(Reading({f"t.py{found.test}": LogStatus.PASSED}, exit_code=1))
    assert "exit code 0" in found.missed(Reading({f"t.py{found.test}": LogStatus.FAILED}, exit_code=0))
    assert (
        found.missed(Reading({f"t.py{found.test}": LogStatus.FAILED}, exit_code=0), exit_code_decides=False)
        is None
    )
    assert found.missed(Reading({f"t.py{found.test}": LogStatus.FAILED}, exit_code=1)) is None


def test_a_second_run_that_broke_off_is_no_verdict():
    found = planted(HONEST, "parse_log_pytest", TESTS)
    broken = [
        Reading(problem="the tests did not end within 1800 s"),
        Reading(problem="no test reported anything", exit_code=1),
        Reading(problem="exit code 137", contradicted=True, exit_code=137),
        Reading({"t.py::test_a": LogStatus.PASSED}, exit_code=137),
    ]
    for reading in broken:
        with pytest.raises(SandboxError, match="broke off"):
            found.missed(reading)
    assert "was not reported" in found.missed(Reading(problem="exit code 1", contradicted=True, exit_code=1))
    assert found.missed(Reading({f"t.py{found.test}": LogStatus.FAILED}, exit_code=2)) is None


@pytest.mark.parametrize(
    ("run", "tells"),
    [
        (RUN, True),
        (f"cd . && {RUN}", True),
        (f"{RUN} \\\n  -v", True),
        (f"(\nset -e\ncd .\n{RUN}\n)", True),
        (f"{RUN} >log 2>&1", True),
        (f"{RUN} || true", False),
        (f"{RUN} | tee log", False),
        (f"{RUN}; true", False),
        (f"{RUN}\necho done", False),
        (f"(\nset -e\n{RUN} || :\n)", False),
    ],
)
def test_the_exit_code_counts_only_where_the_command_can_fail(run, tells):
    found = planted(SCRIPT.format(run=run), "parse_log_pytest", TESTS)
    missed = found.missed(Reading({f"t.py{found.test}": LogStatus.FAILED}, exit_code=0))
    assert (missed is not None) == tells
