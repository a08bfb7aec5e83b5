"""What test runners print is read as statuses; forged and broken reports never pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.grading.verifiers.terminal_bench import pytest_report, swebench_report

HEADER = "=========================== short test summary info ============================\n"


def log(*lines, footer, before="some output\n"):
    return (
        f"{before}{HEADER}"
        + "".join(f"{line}\n" for line in lines)
        + f"======== {footer} in 0.12s ========\n"
    )


def test_all_passed_is_passed():
    report = pytest_report(
        log("PASSED tests/test_a.py::test_x", "PASSED tests/test_a.py::test_y[1 2]", footer="2 passed")
    )
    assert report.passed
    assert report.tests == {"tests/test_a.py::test_x": "PASSED", "tests/test_a.py::test_y[1 2]": "PASSED"}


@pytest.mark.parametrize(
    ("line", "footer"),
    [
        ("FAILED t.py::y - assert 1 == 2", "1 failed, 1 passed"),
        ("ERROR t.py::y - ValueError: - x", "1 passed, 1 error"),
        ("SKIPPED [1] t.py:3: not here", "1 passed, 1 skipped"),
        ("XFAIL t.py::y - known", "1 passed, 1 xfailed"),
        ("XPASS t.py::y", "1 passed, 1 xpassed"),
    ],
)
def test_one_that_did_not_pass_is_enough(line, footer):
    report = pytest_report(log("PASSED t.py::x", line, footer=footer))
    assert not report.passed
    assert report.tampered is None


def test_colours_and_carriage_returns_do_not_matter():
    text = log("\x1b[32mPASSED\x1b[0m t.py::\x1b[1mx\x1b[0m", footer="\x1b[1m1 passed\x1b[0m").replace(
        "\n", "\r\n"
    )
    assert pytest_report(text).tests == {"t.py::x": "PASSED"}


@pytest.mark.parametrize("text", ["", "collected 0 items\n", "PASSED t.py::x\n", log(footer="no tests ran")])
def test_no_tests_are_no_pass(text):
    assert not pytest_report(text).passed


def test_a_second_summary_is_tampering():
    real = log("FAILED t.py::x", footer="1 failed")
    forged = log("PASSED t.py::x", footer="1 passed")
    for text in (forged + real, real + forged):
        assert pytest_report(text).tampered is not None


def test_lines_that_the_last_one_does_not_count_are_tampering():
    assert pytest_report(log("PASSED t.py::x", "PASSED t.py::y", footer="1 passed")).tampered is not None
    assert pytest_report(log("PASSED t.py::x", footer="3 skipped")).tampered is not None


@given(st.text(), st.text())
def test_any_text_can_be_read(before, after):
    assert not pytest_report(before + HEADER + after + HEADER).passed
    pytest_report(before + after)
    swebench_report(before + after)


def test_swebench_results_are_one_word_between_one_pair_of_markers():
    begin, end = "SWEBench results starts here\n", "\nSWEBench results ends here\n"
    assert swebench_report(f"x\n{begin}PASSED{end}").passed
    for text in (
        f"{begin}FAILED{end}",
        f"{begin}PASSED\nno{end}",
        "PASSED",
        begin,
        f"{begin}PASSED{end}" * 2,
    ):
        assert not swebench_report(text).passed
