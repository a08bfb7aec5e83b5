"""Environments: task sets and their graders, one folder each, and the gymnasium ids.

To add a task set, write `environments/NAME/__init__.py` with a class that satisfies
`harnessgym.task.TaskSet` and a grader that its tasks name as `module:function`, then add a line under
`"task_set"` in `harnessgym/registry.py`. `environments/one_liners` is a small one to start from, and
CONTRIBUTING.md lists the tests. A task set outside this package needs no registration: name it as
`module:Class`.

This module itself holds only the gymnasium ids. Importing it registers them, as strings, where gymnasium is
installed: `gymnasium.make("environments:harnessgym/SWE-v0")`.
"""

from pathlib import Path
from typing import Any

_AGENT = str(Path(__file__).parent / "harness" / "agent.py")
IDS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "harnessgym/Code-v0": ("environments.workspace.env:WorkspaceEnv", {"tasks": "human_eval"}, False),
    "harnessgym/Harness-v0": (
        "harnessgym.gym.harness_env:HarnessEnv",
        {"harness_settings": {"argv": ["python", _AGENT]}},
        True,
    ),
    "harnessgym/SWE-v0": ("environments.workspace.env:WorkspaceEnv", {"tasks": "swe"}, False),
}
"""Id to entry point, default arguments, and whether episodes are nondeterministic."""


def _register() -> None:
    try:
        from gymnasium.envs.registration import register, registry
    except ModuleNotFoundError:  # task sets need no gymnasium
        return
    for name, (entry_point, defaults, nondeterministic) in IDS.items():
        if name not in registry:
            register(name, entry_point=entry_point, kwargs=defaults, nondeterministic=nondeterministic)


_register()
