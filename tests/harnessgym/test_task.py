import dataclasses

import pytest

from harnessgym.errors import TaskError
from harnessgym.task import Grade, Limits, Task


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../b", "a/.."])
def test_a_file_outside_the_workspace_is_refused(path):
    with pytest.raises(TaskError, match="inside the workspace"):
        Task("t", "Do it.", files={path: "x"})


@pytest.mark.parametrize("path", ["a", "a/b.txt", "..a", "a..b/c"])
def test_a_file_inside_is_kept(path):
    assert Task("t", "Do it.", files={path: "x"}).files == {path: "x"}


def test_a_task_is_immutable():
    task = Task("t", "Do it.")
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.id = "other"  # type: ignore[misc]


def test_defaults_are_closed_and_bounded():
    task = Task("t", "Do it.")
    assert (task.split, task.network, task.image, task.limits) == ("train", "proxy", None, Limits())
    assert all(value is None or value > 0 for value in dataclasses.astuple(Limits()))


def test_tasks_share_no_mutable_default():
    assert Task("a", "").files is not Task("b", "").files
    assert Grade({"reward": 1.0}).tampered is None
