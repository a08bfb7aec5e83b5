"""A reward is a finite number in the range that its task declares."""

import math

import pytest

from harnessgym.errors import TaskError
from harnessgym.grading.reward_range import is_reward, least_reward, reward_range
from harnessgym.task import Grade, Task, TaskStep
from harnessgym.task_setup.steps import StepResult, joined
from harnessgym.tasks.harbor import Harbor
from harnessgym.tasks.native import read_task


def test_a_reward_is_a_finite_number():
    assert all(map(is_reward, (0, 1, -2.5, 1e308)))
    assert not any(map(is_reward, (True, False, math.nan, math.inf, -math.inf, 10**400, "1", None, [1])))


def test_it_is_0_to_1_unless_the_task_says_otherwise():
    assert reward_range({}, "here") == (0.0, 1.0)
    assert reward_range({"reward_range": [-2, 3]}, "here") == (-2.0, 3.0)


def test_the_least_reward_is_0_unless_the_range_goes_below():
    for declared, least in (([0, 1], 0.0), ([-2, 3], -2.0), ([-1, 0], -1.0), ([0.5, 1], 0.0)):
        assert least_reward(Task("t", "", metadata={"reward_range": declared})) == least
    assert least_reward(Task("t", "")) == 0.0


def test_a_harbor_task_declares_it_in_its_metadata(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("true")
    (tmp_path / "instruction.md").write_text("Do it.")
    image = '[environment]\ndocker_image = "harnessgym/python"\n'
    (tmp_path / "task.toml").write_text(f"[metadata]\nreward_range = [-1, 10]\n{image}")
    loaded = Harbor().read(tmp_path)
    assert loaded.problems == ()
    assert reward_range(loaded.tasks[0].metadata, "here") == (-1.0, 10.0)
    (tmp_path / "task.toml").write_text(f"[metadata]\nreward_range = [1, -1]\n{image}")
    assert "less than the second" in Harbor().read(tmp_path).problems[0]


def test_a_native_task_declares_it_there_too(tmp_path):
    (tmp_path / "instruction.md").write_text("Do it.")
    check = '[[tests]]\nkind = "files"\nrules = [{ path = "a" }]\n'
    (tmp_path / "task.toml").write_text(f"{check}[metadata]\nreward_range = [0, 2]\n")
    assert reward_range(read_task(tmp_path).metadata, "here") == (0.0, 2.0)
    (tmp_path / "task.toml").write_text(f"{check}[metadata]\nreward_range = 2\n")
    with pytest.raises(TaskError, match="Give the least and the largest"):
        read_task(tmp_path)


def test_the_mean_of_steps_lies_in_the_range_of_0_and_theirs():
    """Each step is checked by itself, so a mean of them cannot leave the range but towards 0."""
    task = Task("t", "", steps=(TaskStep("a", "A"), TaskStep("b", "B")), metadata={"reward_range": [1, 3]})
    reached = [StepResult("a", Grade({"reward": 3.0}))]
    assert joined(task, reached).rewards == {"reward": 1.5}
