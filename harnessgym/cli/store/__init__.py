"""`harnessgym store`: creates and maintains trace databases. One module per command or group."""

import typer

from harnessgym.cli.store import database, freeze, prune, run_files

_HELP = (
    "Make, migrate, freeze, prune and compact trace databases; move runs between them.\n\n"
    "SOURCE is a run folder, a database file or a database URL. Colours and progress bars are for terminals "
    "only.\n\n"
    "Exit status: 0 done; 2 an error, which says what to do."
)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help=_HELP, no_args_is_help=True)
    root.add_typer(group, name="store")
    for module in (database, freeze, prune, run_files):
        module.register(group)
