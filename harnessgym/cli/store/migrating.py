"""`harnessgym store migrate` and `revision`."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command("migrate")
    def migrate(
        url: Annotated[str, typer.Argument(help="Database URL, e.g. sqlite:///runs/demo/traces.db")],
    ) -> None:
        """Bring a trace database to this code's schema, data kept; make it if there is none. Stop its
        users first.
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
