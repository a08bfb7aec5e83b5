"""Environments: task sets with their graders, one folder each, and gymnasium ids.

The task sets are named in `harnessgym/registry.py`. Importing this package registers the ids, as strings, if
gymnasium is installed: `gymnasium.make("environments:harnessgym/SWE-v0")`.
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
