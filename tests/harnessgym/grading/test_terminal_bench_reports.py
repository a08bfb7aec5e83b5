"""What test runners print is read as statuses; forged and broken reports never pass."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.grading.verifiers.terminal_bench import _VERY_QUIET, pytest_report, swebench_report

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


def test_a_summary_without_a_last_line_is_tampering():
    """As one that the code under test prints before it ends pytest."""
    forged = f"{HEADER}PASSED t.py::x\nPASSED t.py::y\n"
    for text in (forged, f"{forged}1 passed\n", f"{forged}done\n"):
        assert not pytest_report(text).passed
        assert "no last line" in pytest_report(text).tampered
    assert pytest_report(forged, has_footer=False).passed


TESTS = """\
import pytest


def test_good():
    print("x = 3 passed in it")


def test_bad():
    assert BAD


@pytest.mark.skip
def test_left():
    pass


@pytest.mark.xfail
def test_known():
    raise ValueError("=== 9 passed in 0.1s ===")


@pytest.fixture
def broken():
    raise ValueError


def test_broken(broken):
    pass
"""


@pytest.mark.parametrize("options", [[], ["-q"], ["-v"], ["-vv"], ["-q", "--tb=no"], ["--no-header"]])
@pytest.mark.parametrize("tests", [TESTS, "def test_a():\n    pass\n", "def a(:\n", "", "import warnings\n"])
def test_what_a_real_pytest_prints_is_no_tampering(tmp_path, options, tests):
    (tmp_path / "test_it.py").write_text(tests)
    command = [sys.executable, "-B", "-m", "pytest", "-rA", "-p", "no:cacheprovider", *options, "test_it.py"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    report = pytest_report(output)
    assert report.tampered is None, output
    assert report.passed == tests.startswith("def test_a"), output


@pytest.mark.parametrize(
    ("options", "quiet"),
    [("-qq", True), ("-rA -q t.py -q", True), ("--quiet -q", True), ("-q", False), ("-rA --seq q", False)],
)
def test_only_a_script_that_asks_for_it_has_a_summary_without_a_last_line(options, quiet):
    assert bool(_VERY_QUIET.search(f"uv run pytest {options}\n")) == quiet


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
