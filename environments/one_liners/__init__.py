"""One-liners: tasks that one short shell command solves, for very small models.

`tasks` has the task set and the grader. Files, words and wordings of the two splits differ.
"""

from environments.one_liners.tasks import OneLiners, grade

__all__ = ["OneLiners", "grade"]
