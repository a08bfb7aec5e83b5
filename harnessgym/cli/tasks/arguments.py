"""Arguments and options that several commands share."""

from typing import Annotated

import typer

Spec = Annotated[
    str,
    typer.Argument(help="Registered task set, `module:Class`, or file or folder of tasks.", metavar="SPEC"),
]
TaskId = Annotated[str, typer.Argument(help="Task id, or how it ends behind a slash.", metavar="ID")]
Backend = Annotated[str, typer.Option("--sandbox", help="bubblewrap, docker or `module:Class`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")]
Only = Annotated[list[str] | None, typer.Option("--task", metavar="ID", help="Only this task. Repeatable.")]
