"""A task as JSON values: it comes back as it was, and equal tasks give equal payloads."""

import json

import pytest

from harnessgym.errors import TaskError
from harnessgym.task import GradingImage, Hook, Limits, Setup, Solution, Task, TaskStep
from harnessgym.tasks.payload import payload_of, task_of

FULL = Task(
    "set/one",
    "Do it.",
    "test",
    7,
    files={"a": "1"},
    image="image",
    limits=Limits(wall_s=1.5, tokens=10),
    needs=frozenset({"root", "disk"}),
    setup=Setup((("sh", "-c", "x"),), ("example.org",), 5.0),
    artifacts=("a",),
    grader="checks",
    solution=Solution({"a": "2"}, (("true",),)),
    metadata={"tests": [{"kind": "io"}], "none": None},
    home="/app",
    folders=("/logs",),
    hooks=(Hook(("ls",), root=True),),
    grading=GradingImage("other", (("pip", "install", "x"),)),
    steps=(TaskStep("first", "Begin.", min_reward={"reward": 0.5}),),
    step_reward="final",
)


def test_a_task_comes_back_through_json():
    assert task_of(json.loads(json.dumps(payload_of(FULL)))) == FULL


def test_needs_are_sorted():
    assert payload_of(FULL)["needs"] == ["disk", "root"]


def test_metadata_that_is_no_json_is_named_with_its_task():
    with pytest.raises(TaskError, match="The task 'set/one' cannot be written as JSON"):
        payload_of(Task("set/one", "x", metadata={"handle": object()}))


def test_a_payload_with_a_wrong_value_is_named_with_its_task():
    payload = {**payload_of(FULL), "split": "validation"}
    with pytest.raises(TaskError, match="The stored task 'set/one' cannot be read") as error:
        task_of(payload)
    assert "split" in str(error.value)


def test_a_payload_without_an_id_cannot_be_read():
    with pytest.raises(TaskError, match="The stored task None cannot be read"):
        task_of({"instruction": "x"})


def test_a_file_outside_of_the_workspace_is_refused_when_it_is_read_again():
    with pytest.raises(TaskError, match=r"must be a relative path inside the workspace"):
        task_of({**payload_of(FULL), "files": {"../x": ""}})
