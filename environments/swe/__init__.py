"""SWE: repair real Python packages. Each task is a package with a fault that makes some of its own tests
fail.

The packages are downloaded from their index when the tasks are first asked for; what is wrong with each, and
which tests say so, is in the manifest. They need python3 with pytest, and nothing else. `python -m
environments.swe.generate` makes more.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from environments.swe.building import tasks_of
from environments.swe.package import packages
from harnessgym.task import Split, Task


class SweTasks:
    """Every task of the manifests, by package. The splits share no package."""

    name = "swe"
    baseline = Path(__file__).with_name("baseline.json")
    """What `harnessgym tasks check` found of every task."""

    def tasks(self, split: Split) -> Sequence[Task]:
        """The tasks of a split. Raises TaskError when a package's source distribution cannot be had."""
        return _tasks(split)


@cache
def _tasks(split: Split) -> Sequence[Task]:
    return tuple(task for each in packages().values() if each.split == split for task in tasks_of(each))
