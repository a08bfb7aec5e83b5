"""Logs of evaluation scripts: what is a result, what is none, and who is behind it."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.grading.log import LogStatus, parser_named
from harnessgym.grading.verifiers.eval_log import END, EXIT_CODE, START, diagnosis, instrumented, read_log

PYTEST = parser_named("parse_log_pytest")
KARMA = parser_named("parse_log_chart_js")


def log(inside, code=0, before="", after=""):
    return f"{before}+ : '{START}'\n{inside}\n+ : '{END}'\n{EXIT_CODE}: {code}\n{after}"


def test_what_stands_between_the_markers_counts():
    found = read_log(log("PASSED a\nFAILED b - x", 1, before="PASSED c\n", after="PASSED d\n"), PYTEST)
    assert found.statuses == {"a": LogStatus.PASSED, "b": LogStatus.FAILED}
    assert (found.problem, found.exit_code) == ("", 1)


def test_what_is_printed_past_the_markers_counts_when_there_is_nothing_else():
    assert read_log(log("", after="PASSED a\n"), PYTEST).statuses == {"a": LogStatus.PASSED}


@pytest.mark.parametrize("text", ["", "PASSED a", f"{START}\nPASSED a", f"PASSED a\n{END}"])
def test_without_both_markers_there_is_no_result(text):
    found = read_log(text, PYTEST)
    assert not found.statuses
    assert "no beginning or no end" in found.problem


@pytest.mark.parametrize("said", ["Patch Apply Failed", "Reset Failed", "Tests Errored", "Tests Timed Out"])
def test_what_the_harness_says_went_wrong_is_no_result(said):
    assert said in read_log(f">>>>> {said}\n" + log("PASSED a"), PYTEST).problem


def test_passed_lines_over_a_failed_command_are_forged():
    found = read_log(log("PASSED a\nPASSED b", 1), PYTEST)
    assert not found.statuses
    assert "exit code 1" in found.problem
    assert read_log(log("PASSED a\nERROR b", 1), PYTEST).statuses
    assert read_log(f"{START}\nPASSED a\n{END}\n", PYTEST).statuses  # a script that tells no exit code


def test_where_the_exit_code_does_not_decide_it_is_told_and_nothing_else():
    for text in ("PASSED a", "Executed 3 of 12"):
        found = read_log(log(text, 1), PYTEST, exit_code_decides=False)
        assert (found.problem, found.exit_code, found.statuses) == ("", 1, PYTEST(text))
    assert read_log(log("", 1), PYTEST, exit_code_decides=False).problem


@given(
    st.dictionaries(
        st.from_regex(r"t\.py::test_[a-z]{1,9}", fullmatch=True),
        st.sampled_from(list(LogStatus)),
        min_size=1,
    )
)
def test_no_mixture_of_good_statuses_hides_a_failed_command(statuses):
    text = log("\n".join(f"{status} {test}" for test, status in statuses.items()), 1)
    failed = any(status in (LogStatus.FAILED, LogStatus.ERROR) for status in statuses.values())
    assert (read_log(text, PYTEST).problem == "") == failed


@pytest.mark.parametrize(
    ("said", "ran"),
    [
        ("Executed 12 of 12 SUCCESS", True),
        ("Executed 0 of 0", False),
        ("TOTAL: 3 SUCCESS", True),
        ("5 passing (2s)", True),
        ("0 passing", False),
        ("Tests:       4 passed", True),
        ("Test Suites: 1 passed, 1 total", True),
        ("# tests 4", True),
        ("12 specs, 0 failures", True),
        ("0 specs, 0 failures", False),
        ("Chrome did not start", False),
    ],
)
def test_an_empty_log_needs_evidence_that_a_suite_ran(said, ran):
    assert (read_log(log(said), KARMA).problem == "") == ran


def test_a_run_that_broke_off_is_no_result_where_failures_alone_are_named():
    found = read_log(log("Executed 3 of 12\nDisconnected", 1), KARMA)
    assert "exit code 1" in found.problem
    assert read_log(log("Executed 12 of 12 SUCCESS"), KARMA).problem == ""


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("Failed to launch the browser", "environment"),
        ("fatal: Could not resolve host: x", "environment"),
        ("ModuleNotFoundError: No module named 'x'", "ambiguous"),
        ("collected 0 items", "ambiguous"),
        ("all is well", None),
    ],
)
def test_who_is_behind_a_log_without_a_result(said, cause):
    assert read_log(log("", before=f"{said}\n"), PYTEST).cause == cause
    assert (diagnosis(said) or ("", None))[1] == cause


@pytest.mark.parametrize(
    "said",
    [
        *(
            "Killed",
            "java.lang.OutOfMemoryError",
            "fork: Cannot allocate memory",
            "cp: No space left on device",
        ),
        *("Failed to launch the browser", "Could not resolve host: x", "Error response from daemon: no"),
    ],
)
def test_what_the_code_under_test_can_have_printed_is_no_failure_of_the_environment(said):
    """It would turn a reward of 0 into none."""
    assert read_log(log(said, 1), PYTEST).cause == "ambiguous"
    assert read_log(log("", 1, before=f"{said}\n"), PYTEST).cause == "environment"
    assert read_log(f"{said}\n", PYTEST).cause == "environment"


def test_trouble_in_a_log_with_results_is_the_tests_own():
    assert read_log(log("PASSED a\nNo space left on device"), PYTEST).cause is None


SCRIPT = f"#!/bin/bash\nset -uxo pipefail\n: '{START}'\n{{body}}\n: '{END}'\ntrue\n"


def run(script):
    return subprocess.run(
        ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    ).stdout


@pytest.mark.parametrize("nonce", ["", "f00d"])
@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_script_tells_how_its_tests_ended(nonce, code):
    found = read_log(
        run(instrumented(SCRIPT.format(body=f"(echo FAILED a; exit {code})"), nonce)), PYTEST, nonce
    )
    assert (found.exit_code, found.statuses) == (code, {"a": LogStatus.FAILED})


FORGED = "echo PASSED a; for said in ' End Test Output' ' Test Exit Code: 0'; do echo '>>>>>'\"$said\"; done; echo FAILED a; false"


def test_tests_that_print_markers_end_a_log_only_without_a_nonce():
    script = SCRIPT.format(body=FORGED)
    assert read_log(run(instrumented(script)), PYTEST).statuses == {"a": LogStatus.PASSED}
    found = read_log(run(instrumented(script, "f00d")), PYTEST, "f00d")
    assert (found.statuses, found.exit_code) == ({"a": LogStatus.FAILED}, 1)


def test_tests_that_end_the_script_leave_no_result():
    assert read_log(
        run(instrumented(SCRIPT.format(body="echo PASSED a; kill -9 $$"), "f00d")), PYTEST, "f00d"
    ).problem


def test_a_script_without_an_end_stays_as_it_is():
    assert instrumented("echo PASSED a\n", "f00d") == "echo PASSED a\n"
