"""Held-out tasks that are trained on are found by id and by what the agent is given."""

from dataclasses import replace

import pytest

from harnessgym.task import Setup, Task
from harnessgym.tasks.contamination import contamination
from harnessgym.tasks.source import task_set

ONE = Task("one", "Do it.", files={"a.py": "x = 1\n"})
TWO = Task("two", "Do another.", files={"a.py": "x = 1\n"})


def test_splits_that_share_nothing_are_clean():
    found = contamination([ONE], [TWO])
    assert (found.refusal, found.warning) == ("", "")


def test_a_task_in_both_splits_is_found_by_its_id():
    found = contamination([ONE, TWO], [replace(TWO, instruction="Something else.")])
    assert found.same_id == ("two",)
    assert found.refusal.startswith("two is in both splits")


def test_a_copy_under_another_id_is_found_by_what_the_agent_is_given():
    found = contamination([ONE, TWO], [replace(ONE, id="three", seed=9, metadata={"x": 1})])
    assert (found.same_id, found.same_question) == ((), ("three",))
    assert "three is held out" in found.warning


@pytest.mark.parametrize(
    "change",
    [{"instruction": "Do."}, {"files": {}}, {"image": "debian"}, {"setup": Setup((("true",),))}],
    ids=["instruction", "files", "image", "setup"],
)
def test_whatever_else_the_agent_is_given_makes_another_task(change):
    assert contamination([ONE], [replace(ONE, id="x", **change)]).same_question == ()


def test_many_are_counted():
    many = [replace(ONE, id=str(number)) for number in range(8)]
    assert "0, 1, 2, 3, 4 and 3 more are in both splits" in contamination(many, many).refusal


@pytest.mark.parametrize("name", ["lookup", "one_liners", "shell", "setup", "reasoning"])
def test_shipped_sets_are_clean(name):
    shipped = task_set(name)
    found = contamination(shipped.tasks("train"), shipped.tasks("test"))
    assert (found.same_id, found.same_question) == ((), ())
