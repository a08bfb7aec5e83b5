"""Lookup: the quickstart's task, with three assistant turns, two tools, and a shipped policy to train.

The policy at first calls the wrong tool. `protocol` is what a harness must reproduce, `tasks` has the task
set and the grader, and the folder `policy/` (a Hugging Face folder, made by
`benchmarks/recipe/warm_start.py`) has the policy. Nothing here imports torch.
"""

from environments.lookup.tasks import LookupTasks, grade

__all__ = ["LookupTasks", "grade"]
