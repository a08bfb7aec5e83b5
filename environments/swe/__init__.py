"""SWE: repair real Python packages. In each task, a fault in a package makes some of its own tests fail.

The packages are downloaded from their index when the tasks are first needed. The manifest has the faults
and the tests that fail. The tasks need only python3 with pytest. `python -m environments.swe.generate`
makes more.
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
    """Results of `harnessgym tasks check` for every task."""

    def tasks(self, split: Split) -> Sequence[Task]:
        """The tasks of a split. Raises TaskError if a package's source distribution is not available."""
        return _tasks(split)


@cache
def _tasks(split: Split) -> Sequence[Task]:
    return tuple(task for each in packages().values() if each.split == split for task in tasks_of(each))
