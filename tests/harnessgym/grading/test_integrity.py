"""How rewards are decided: by values or in the judged process, and what a run that demands more refuses."""

import pytest

from harnessgym.config import validate
from harnessgym.errors import ConfigError
from harnessgym.grading.integrity import integrity_of, refusal
from harnessgym.run_config.run import NodeSection
from harnessgym.task import Solution, Task

CALL = {"kind": "call", "module": "work", "function": "double", "cases": [{"args": [1], "result": 2}]}
PYTEST = {"kind": "pytest", "files": ["test_a.py"], "expect": ["test_a.py::test_a"]}
GRADER = "harnessgym.grading.checklist:verifier"


def task_of(*tests, score="all", **fields):
    files = {"test_a.py": "def test_a(): pass\n", "run.sh": "true\n"}
    metadata = {"tests": tests, "test_files": files, "score": score, **fields.pop("more", {})}
    return Task("set/t", "do it", grader=GRADER, metadata=metadata, **fields)


@pytest.mark.parametrize(
    ("task", "integrity"),
    [
        (task_of(CALL), "by_value"),
        (task_of(PYTEST), "in_process"),
        (task_of({"kind": "command"}), "in_process"),
        (task_of(PYTEST, CALL), "by_value"),
        (task_of(PYTEST, CALL, score="weighted"), "in_process"),
        (task_of(PYTEST, more={"by_value": {}}), "by_value"),
        (Task("t", "do", grader="harnessgym.grading.verifiers.harbor:verifier"), "in_process"),
        (Task("t", "do", grader="environments.lookup.tasks:grade"), "by_value"),
    ],
)
def test_the_integrity_of_a_task(task, integrity):
    assert integrity_of(task) == integrity


def test_a_run_that_demands_values_refuses_the_others_by_name():
    solved = task_of(PYTEST, solution=Solution({"a.py": ""}))
    assert refusal([task_of(CALL), solved], "off", "any") == ""
    assert "1 of 2 tasks" in refusal([task_of(CALL), solved], "off", "by_value")
    assert "set/t" in refusal([task_of(CALL), solved], "evidence", "by_value")
    assert refusal([solved], "required", "by_value") == ""
    assert "no solution" in refusal([solved, task_of(PYTEST)], "required", "any")


def test_the_settings_take_true_and_false_too():
    assert validate(NodeSection, {"second_opinion": True}, "x").second_opinion == "evidence"
    assert validate(NodeSection, {"second_opinion": False}, "x").second_opinion == "off"
    assert validate(NodeSection, {"second_opinion": "required"}, "x").second_opinion == "required"
    with pytest.raises(ConfigError, match="second_opinion"):
        validate(NodeSection, {"second_opinion": "perhaps"}, "x")
