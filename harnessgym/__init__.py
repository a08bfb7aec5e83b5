"""HarnessGym trains the model inside any agent harness, without touching the harness.

The public names below live in their own modules and are loaded on first use, so importing the package is
cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harnessgym.errors import HarnessGymError
    from harnessgym.gym.harness_env import HarnessEnv
    from harnessgym.gym.make import make
    from harnessgym.message import Message, Sampling, ToolCall, ToolSpec
    from harnessgym.registry import load
    from harnessgym.store.trace_store import TraceStore
    from harnessgym.task import Grade, Limits, Task, TaskSet
    from harnessgym.tokens import VersionSpan
    from harnessgym.traces.forest import Forest
    from harnessgym.traces.trajectories import Row, Turn

__all__ = [
    "Forest",
    "Grade",
    "HarnessEnv",
    "HarnessGymError",
    "Limits",
    "Message",
    "Row",
    "Sampling",
    "Task",
    "TaskSet",
    "ToolCall",
    "ToolSpec",
    "TraceStore",
    "Turn",
    "VersionSpan",
    "load",
    "make",
]

_HOMES = {
    "harnessgym.errors": ("HarnessGymError",),
    "harnessgym.gym.harness_env": ("HarnessEnv",),
    "harnessgym.gym.make": ("make",),
    "harnessgym.message": ("Message", "Sampling", "ToolCall", "ToolSpec"),
    "harnessgym.registry": ("load",),
    "harnessgym.store.trace_store": ("TraceStore",),
    "harnessgym.task": ("Grade", "Limits", "Task", "TaskSet"),
    "harnessgym.tokens": ("VersionSpan",),
    "harnessgym.traces.forest": ("Forest",),
    "harnessgym.traces.trajectories": ("Row", "Turn"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'harnessgym' has no attribute {name!r}")
