"""Plain graders that tests name."""

from harnessgym.task import Grade


def looking(task, workspace):
    """What it saw, as evidence."""
    seen = sorted(str(path.relative_to(workspace)) for path in workspace.rglob("*"))
    return Grade({"reward": float("answer.txt" in seen), "files": len(seen)}, evidence={"seen": seen})


def giving(task, workspace):
    """What the task says."""
    return task.metadata["grade"]


def failing(task, workspace):
    """A bug."""
    return {}["nothing"]
