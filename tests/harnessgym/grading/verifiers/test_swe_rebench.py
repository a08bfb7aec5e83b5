"""The rules of SWE-rebench and R2E: names without durations, and results that agree as a whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.grading.log import LogStatus, parser_named
from harnessgym.grading.verifiers.eval_log import instrumented, read_log
from harnessgym.grading.verifiers.r2e import results, same_results
from harnessgym.grading.verifiers.swe_rebench import matches, passed_names, script_of, without_duration
from tests.harnessgym.grading.verifiers.test_eval_log import run

P, F, S = LogStatus.PASSED, LogStatus.FAILED, LogStatus.SKIPPED
NAMES = st.from_regex(r"[a-z]{1,8}( [a-z]{1,8}){0,2}", fullmatch=True)
DURATIONS = st.sampled_from(
    ["", " (1.234s)", " (12 ms)", " [1.34 ms]", "[123ms]", " in 29.08 msec", " in 1 sec"]
)


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("adds (1.2s)", "adds"),
        ("adds [ 3 ms ]", "adds"),
        ("AES in 29.08 msec", "AES"),
        ("AES in 1 sec: ok", "AES: ok"),
        ("waits (5s) twice", "waits (5s) twice"),
        ("t[1-2]", "t[1-2]"),
        ("fits in memory", "fits in memory"),
    ],
)
def test_durations_are_no_part_of_a_name(name, bare):
    assert without_duration(name) == bare


@given(st.sets(NAMES, min_size=1, max_size=6), st.data())
def test_the_same_tests_match_whatever_time_they_took(names, data):
    ordered = sorted(names)
    cut = data.draw(st.integers(0, len(ordered)))
    timed = {name + data.draw(DURATIONS): P for name in ordered}
    expected = [name + data.draw(DURATIONS) for name in ordered]
    assert matches(timed, expected[:cut], expected[cut:])
    assert matches({**timed, "another 1": F, "another 2": S}, expected[:cut], expected[cut:])
    assert not matches({**timed, "another 1": P}, expected[:cut], expected[cut:])
    assert not matches(timed, expected[:cut], [*expected[cut:], "another 1"])


def test_skipped_and_expected_failures_did_not_pass():
    assert passed_names({"a": P, "b": S, "c": LogStatus.XFAIL, "d": LogStatus.ERROR}) == {"a"}
    assert passed_names({"a (1s)": P, "a (2s)": F}) == frozenset()


def test_the_first_command_that_fails_is_the_last():
    said = run(instrumented(script_of(["echo PASSED a", "cd /", "false", "echo PASSED b"]), "x"))
    assert read_log(said + "FAILED c", parser_named("parse_log_pytest"), "x").exit_code == 1
    assert "PASSED b" not in said


def test_results_agree_as_a_whole():
    statuses = {"T.a": P, "b": F}
    assert same_results(statuses, {"b - AssertionError": "FAILED", "\x1b[1mT.a\x1b[0m": "PASSED"})
    for other in (
        {"T.a": "PASSED"},
        {"T.a": "PASSED", "b": "PASSED"},
        {"T.a": "PASSED", "b": "FAILED", "c": "PASSED"},
        {},
    ):
        assert not same_results(statuses, other)


@given(st.dictionaries(NAMES, st.sampled_from([P, F, LogStatus.ERROR]), max_size=6))
def test_results_agree_with_themselves_through_json(statuses):
    expected = json.loads(json.dumps({test: status.value for test, status in statuses.items()}))
    assert same_results(statuses, expected)
    assert results(expected) == expected
