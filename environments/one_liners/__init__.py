"""One-liners: tasks that one short shell command does, for models so small that more is out of reach.

`tasks` is the task set, `grader` the judge. Files, words and wordings of the two splits differ.
"""

from environments.one_liners.tasks import OneLiners, grade

__all__ = ["OneLiners", "grade"]
