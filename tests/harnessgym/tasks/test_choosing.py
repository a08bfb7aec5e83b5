"""Tasks are chosen by their ids or the ends of these, and counted from the first."""

import pytest

from harnessgym.errors import ConfigError
from harnessgym.task import Task
from harnessgym.tasks.source import all_tasks, chosen


class Tasks:
    name = "s"

    def tasks(self, split):
        ids = {"train": ("s/b", "s/a"), "test": ("s/c",)}
        return [Task(name, "x", split) for name in ids[split]]


def ids(*arguments, **options):
    return [task.id for task in chosen(Tasks(), *arguments, **options)]


def test_training_tasks_come_first_in_the_order_of_the_set():
    assert [task.id for task in all_tasks(Tasks())] == ["s/b", "s/a", "s/c"]
    assert ids() == ids([]) == ["s/b", "s/a", "s/c"]


def test_chosen_tasks_come_in_the_order_of_their_names_and_once_each():
    assert ids(["c", "s/b", "s/c"]) == ["s/c", "s/b"]


def test_a_limit_counts_from_the_first():
    assert ids(limit=2) == ["s/b", "s/a"]
    assert ids(["c", "a"], 1) == ["s/c"]


def test_an_unknown_name_has_a_hint():
    with pytest.raises(ConfigError, match=r"There is no task 's/aa'\. Did you mean 's/a'\?"):
        ids(["s/aa"])
