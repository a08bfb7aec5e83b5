import pytest

from harnessgym.errors import ConfigError, TaskError
from harnessgym.task import Limits, Setup, Solution, Task, TaskStep
from harnessgym.tasks.payload import payload_of, task_of
from harnessgym.tasks.source import task_set
from tests.harnessgym.rollout.tiny import HERE


def test_tasks_come_from_a_name_a_class_or_a_folder(tmp_path):
    assert task_set("lookup").tasks("test")
    assert [task.id for task in task_set(f"{HERE}:Tiny").tasks("test")] == [
        f"tiny/test/{i}" for i in range(3)
    ]
    folder = tmp_path / "mine" / "one"
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(
        'instruction = "Do."\n[[tests]]\nkind = "io"\ncommand = ["cat"]\ncases = [{ stdin = "x", stdout = '
        '"x" }]\n'
    )
    (found,) = task_set(str(tmp_path / "mine")).tasks("train")
    assert found.instruction == "Do."


@pytest.mark.parametrize("spec", ["nowhere", "no/such/folder", "no/such:Thing", ""])
def test_what_names_none_says_what_can_be_named(spec):
    with pytest.raises(ConfigError, match=r"Give a registered task set, `module:Class`, or a file or folder"):
        task_set(spec)


def test_a_format_can_be_said(tmp_path):
    folder = tmp_path / "mine" / "one"
    folder.mkdir(parents=True)
    with pytest.raises(ConfigError, match="in no task format that is known"):
        task_set(str(folder))
    with pytest.raises(TaskError, match="holds no task that can be used"):
        task_set(f"native@{folder}").tasks("train")


def test_a_task_survives_json():
    task = Task(
        "a/b", "Do.", "test", 7, {"x": "1"}, "img", Limits(wall_s=1.5, tokens=9), needs=frozenset({"disk"}),
        setup=Setup((("a", "b"),), ("h",), 2.0), artifacts=("x",), grader="m:g", verifier="shared",
        solution=Solution({"y": "2"}, (("c",),)), metadata={"n": [1, {"m": None}]}, home="/app", folders=("/logs",),
        collect=("/logs/a",), steps=(TaskStep("s", "Do.", {"z": "3"}, wall_s=3.0, min_reward={"reward": 0.5}),),
        step_reward="final",
    )  # fmt: skip
    assert task_of(payload_of(task)) == task


def test_what_is_no_task_or_no_json_is_named():
    with pytest.raises(TaskError, match="'a' cannot be read"):
        task_of({"id": "a"})
    with pytest.raises(TaskError, match="'a' cannot be written as JSON"):
        payload_of(Task("a", "Do.", metadata={"x": object()}))
