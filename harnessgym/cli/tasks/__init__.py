"""`harnessgym tasks`: lists, shows, checks, tries and converts tasks. One file per command."""

import typer

from harnessgym.cli.tasks import check, convert, opinion, run, show, task_list

_HELP = (
    "Look at tasks, check them, try them, take them elsewhere.\n\n"
    "SPEC is a registered task set, `module:Class`, or a file or folder of tasks in one of the formats; "
    "`FORMAT@PATH` says "
    "which. ID is a task's id, or how it ends behind a slash.\n\n"
    "Exit status: 0 done; 1 done, and the answer is no (a check failed, a task was not solved or not "
    "written); 2 an error."
)

app = typer.Typer(help=_HELP, no_args_is_help=True)
for _module in (task_list, show, check, run, opinion, convert):
    _module.register(app)
