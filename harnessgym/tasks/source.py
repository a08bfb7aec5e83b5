"""Where tasks come from: a name, a class, or a folder.

task_set("lookup")               a registered task set
task_set("my_tasks:MyTasks")     a class of yours
task_set("examples/tasks")       a folder of native tasks
"""

from pathlib import Path

from harnessgym.errors import ConfigError
from harnessgym.registry import REGISTRY, load, names
from harnessgym.task import TaskSet

_NATIVE = "harnessgym.tasks.native:NativeTasks"
_FILE = "task.toml"


def task_set(spec: str) -> TaskSet:
    """The task set that `spec` names. Raises `ConfigError`, saying what can be named, if it names none."""
    if spec in REGISTRY["task_set"]:
        made: TaskSet = load("task_set", spec)()
        return made
    if spec and Path(spec).is_dir():
        native: TaskSet = load("task_set", _NATIVE)(Path(spec))
        return native
    if ":" in spec and "/" not in spec:
        other: TaskSet = load("task_set", spec)()
        return other
    known = ", ".join(names("task_set"))
    raise ConfigError(
        f"There are no tasks {spec!r}. Give a registered task set ({known}), `module:Class`, or a folder of native tasks "
        f"(each a folder with a {_FILE})."
    )
