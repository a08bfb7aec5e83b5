"""Lookup: the quickstart's task. Three assistant turns, two tools, a shipped policy that starts out calling
the wrong one.

`protocol` is what a harness must reproduce, `tasks` the task set, `grader` the judge, and the folder
`policy/` (a Hugging Face folder, made by `benchmarks/recipe/warm_start.py`) the policy to train. Nothing here
imports torch.
"""

from environments.lookup.tasks import LookupTasks, grade

__all__ = ["LookupTasks", "grade"]
