"""`harnessgym store migrate`, `revision` and `vacuum`: commands on a whole database."""

from typing import Annotated

import typer

from harnessgym.cli.traces.source import AsJson, Source

_VACUUM_EPILOG = """A SQLite file is rewritten and shrinks: nobody else may use it meanwhile, and the disk
holds it twice. PostgreSQL keeps the space for later rows and stays usable; `--full` returns it to the disk,
and locks each table while it is rewritten.

Example: `harnessgym store vacuum runs/quickstart`

JSON: {before, after}, in bytes.

Exit status: 0 done; 2 an error, for example because others use the database."""


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command("migrate")
    def migrate(
        url: Annotated[str, typer.Argument(help="Database URL, e.g. sqlite:///runs/demo/traces.db")],
    ) -> None:
        """Migrate a trace database to this code's schema and keep its data; create it if there is none.
        Stop everything that uses it first.
        """
        from harnessgym.store import TraceStore
        from harnessgym.store.schema import head_revision

        TraceStore.create(url).close()
        typer.echo(f"{url} has schema revision {head_revision()}.")

    @app.command("revision")
    def revision() -> None:
        """Print the schema revision this code needs."""
        from harnessgym.store.schema import head_revision

        typer.echo(head_revision())

    @app.command("vacuum", epilog=_VACUUM_EPILOG)
    def vacuum_command(
        source: Source,
        full: Annotated[
            bool, typer.Option("--full", help="PostgreSQL: shrink its files, with locks.")
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        """Give the space of removed rows back."""
        from rich.filesize import decimal

        from harnessgym.cli.traces.printed import console, notes, print_json
        from harnessgym.cli.traces.source import store_url
        from harnessgym.store.retention import vacuum

        with notes().status("vacuum"):
            sizes = vacuum(store_url(source), full=full)
        if as_json:
            print_json(sizes)
        else:
            console().print(f"{decimal(sizes.before)} before, {decimal(sizes.after)} after.")
