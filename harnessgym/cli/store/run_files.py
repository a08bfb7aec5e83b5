"""`harnessgym store export` and `import`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.cli.traces.source import AsJson, Source

if TYPE_CHECKING:
    from harnessgym.store.run_file import Moved, Progress

_EXPORT_EPILOG = """The file is a SQLite database of the same schema with this run alone: every row, every
token, every body byte for byte. Whatever reads traces reads it: `harnessgym traces list FILE`, `traces verify
FILE`, plain SQL. Weights are not in it: policy versions name their folders. The run may go on meanwhile; what
is written is one state of it.

Examples:

`harnessgym store export runs/quickstart latest quickstart.hgrun`

`harnessgym store export postgresql+psycopg://host/traces 0660c4d3 run.hgrun`

JSON: {run_id, rollouts, rows: {TABLE: rows}, bytes}.

Exit status: 0 done; 2 an error, and there is no file."""
_IMPORT_EPILOG = """Ids stay as they are; tasks that the target has already are shared. A run that it has
already is refused. The import is one transaction: interrupted, it leaves nothing. Who else writes to a SQLite
target waits for it.

Import into a database of its own or a shared one. A run folder is refused, for its database holds its run
alone; a run whose database has another run besides is not continued.

Examples:

`harnessgym store import quickstart.hgrun postgresql+psycopg://host/traces`

`harnessgym store import quickstart.hgrun sqlite:///all.db`

JSON: {run_id, rollouts, rows: {TABLE: rows}, bytes: of the file}.

Exit status: 0 done; 2 an error, and the target is as it was."""


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command("export", epilog=_EXPORT_EPILOG)
    def export(
        source: Source,
        run: Annotated[str, typer.Argument(help="Run id, how it begins, or `latest`.", metavar="RUN")],
        out: Annotated[Path, typer.Argument(help="File to write, e.g. demo.hgrun.", metavar="FILE")],
        as_json: AsJson = False,
    ) -> None:
        """Write a whole run to one file."""
        from harnessgym.cli.traces.source import store_url
        from harnessgym.store.run_file import export_run

        with _bar() as update:
            moved = export_run(store_url(source), run, out, update)
        _print(moved, str(out), as_json)

    @app.command("import", epilog=_IMPORT_EPILOG)
    def import_(
        file: Annotated[Path, typer.Argument(help="File that `store export` wrote.", metavar="FILE")],
        target: Annotated[
            str, typer.Argument(help="Database URL or file; made if there is none.", metavar="TARGET")
        ],
        as_json: AsJson = False,
    ) -> None:
        """Read a run from a file into a database."""
        from harnessgym.cli.traces.source import import_url
        from harnessgym.store.backend import shown
        from harnessgym.store.run_file import import_run

        url = import_url(target)
        with _bar() as update:
            moved = import_run(file, url, update)
        _print(moved, shown(url), as_json)


@contextmanager
def _bar() -> "Iterator[Progress]":
    """A progress bar; yields the function that updates it."""
    from harnessgym.cli.traces.printed import progress

    with progress() as bars:
        bar = bars.add_task("rollouts", total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)


def _print(moved: "Moved", where: str, as_json: bool) -> None:
    from rich.filesize import decimal

    from harnessgym.cli.traces.printed import console, print_json

    if as_json:
        print_json(moved)
        return
    calls = moved.rows.get("calls", 0)
    size = decimal(moved.bytes)
    summary = f"{where}: run {moved.run_id}, {moved.rollouts:,} rollouts, {calls:,} calls; file of {size}."
    console().print(summary, markup=False)
