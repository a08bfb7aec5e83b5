"""`harnessgym store vacuum`."""

from typing import Annotated

import typer

from harnessgym.cli.traces.arguments import AsJson, Source

_EPILOG = """A SQLite file is written anew and shrinks: nobody else may use it, and for a while the disk holds it twice.
PostgreSQL keeps the space for later rows, and works on meanwhile; `--full` gives it back to the disk, table by table, each
locked while it is rewritten.

Example: `harnessgym store vacuum runs/quickstart`

JSON: {before, after}, in bytes.

Exit status: 0 done; 2 an error, e.g. because others use the database."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("vacuum", epilog=_EPILOG)
    def command(
        source: Source,
        full: Annotated[
            bool, typer.Option("--full", help="PostgreSQL: shrink its files, with locks.")
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        """Give back the space of what was removed."""
        from rich.filesize import decimal

        from harnessgym.cli.traces.opened import store_url
        from harnessgym.cli.traces.printed import console, notes, print_json
        from harnessgym.store.vacuum import vacuum

        with notes().status("vacuum"):
            found = vacuum(store_url(source), full=full)
        if as_json:
            print_json(found)
        else:
            console().print(f"{decimal(found.before)} before, {decimal(found.after)} after.")
