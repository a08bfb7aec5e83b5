"""The report of a second opinion as JSON, beside a grade that it does not change."""

import json

from harnessgym.grading.differential.suite import (
    KEY,
    Difference,
    Opinion,
    SuiteResult,
    is_collected,
    own_tests,
    with_opinion,
)
from harnessgym.task import Grade

DIFFERENCE = Difference("m.f", "result", "(1)", "1", "2")


def test_a_difference_is_told_with_both_outcomes():
    assert DIFFERENCE.to_dict() == {
        "function": "m.f", "kind": "result", "arguments": "(1)", "gold": "1", "candidate": "2",
    }  # fmt: skip


def test_an_opinion_shows_twenty_differences_and_counts_all():
    report = Opinion(False, differs=(DIFFERENCE,) * 25, inputs=30, functions=("m.f",)).to_dict()
    assert len(report["differs"]) == 20
    assert report["differences"] == 25
    assert (report["agrees"], report["inputs"], report["functions"]) == (False, 30, ["m.f"])


def test_why_there_is_no_opinion_is_told_only_then():
    assert Opinion(None, "no function differs").to_dict()["why"] == "no function differs"
    assert "why" not in Opinion(True).to_dict()


def test_an_opinion_without_a_suite_has_none():
    report = Opinion(True, left_out={"m.g": "no input"}).to_dict()
    assert report["suite"] is None
    assert report["left_out"] == {"m.g": "no input"}
    json.dumps(report)


def test_the_verdict_of_the_developers_tests():
    assert SuiteResult(3, ()).to_dict() == {"verdict": "passed", "passed": 3, "failed": []}
    assert SuiteResult(1, ("t.py::a",)).to_dict() == {"verdict": "failed", "passed": 1, "failed": ["t.py::a"]}
    assert SuiteResult(0, (), "the runner did not start").to_dict() == {
        "verdict": "unknown", "passed": 0, "failed": [], "why": "the runner did not start",
    }  # fmt: skip


def test_at_most_twenty_failed_tests_are_named():
    names = tuple(f"t.py::test_{number}" for number in range(30))
    assert SuiteResult(0, names).to_dict()["failed"] == list(names[:20])


def test_an_opinion_is_added_to_a_grade_and_changes_nothing_else():
    grade = Grade({"reward": 1.0}, evidence={"checks": []})
    both = with_opinion(grade, Opinion(False, differs=(DIFFERENCE,)))
    assert both.rewards == {"reward": 1.0}
    assert both.tampered is None
    assert both.evidence["checks"] == []
    assert both.evidence[KEY]["agrees"] is False
    assert KEY not in grade.evidence


def test_pytest_collects_files_by_their_names():
    assert is_collected("a/test_x.py")
    assert is_collected("x_test.py")
    assert not is_collected("tests/helpers.py")
    assert not is_collected("conftest.py")
    assert not is_collected("test_x.txt")


def test_the_tests_of_a_workspace_are_the_collected_files_outside_of_hidden_folders(tmp_path):
    for name in (
        "test_a.py", "tests/test_b.py", "tests/data.py", "src/c.py", ".venv/test_d.py",
        "node_modules/test_e.py", "__pycache__/test_f.py", "pkg/g_test.py",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "test_link.py").symlink_to("test_a.py")
    assert own_tests(tmp_path) == ["test_a.py", "pkg/g_test.py", "tests/test_b.py"]
