"""Arguments and options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.cli.traces.printed import notes

if TYPE_CHECKING:
    from harnessgym.task import TaskSet

Spec = Annotated[
    str,
    typer.Argument(help="Registered task set, `module:Class`, or file or folder of tasks.", metavar="SPEC"),
]
TaskId = Annotated[str, typer.Argument(help="Task id, or how it ends behind a slash.", metavar="ID")]
Backend = Annotated[str, typer.Option("--sandbox", help="bubblewrap, docker or `module:Class`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")]
Hidden = Annotated[
    list[Path] | None,
    typer.Option(
        "--hidden",
        help="A file or folder that sandboxes do not show, as `sandbox.hidden` of a run. Repeatable.",
    ),
]
Only = Annotated[list[str] | None, typer.Option("--task", metavar="ID", help="Only this task. Repeatable.")]


_SHOWN = 8
_ALL = 1 << 30


def say_remarks(task_set: "TaskSet", *, every: bool = False) -> None:
    """Print remarks on stderr, one line each; only the first few unless `every`."""
    from harnessgym.tasks.source import remarks_of

    out = notes()
    for line in remarks_of(task_set, _ALL if every else _SHOWN):
        out.print(line, markup=False)
