"""`harnessgym traces import`."""

from pathlib import Path
from typing import Annotated

import typer

from harnessgym.cli.traces.source import AsJson, Source

_EPILOG = """Formats: atif, mas (awesome-llm-mas-rl); or `module:Class` of your own. A file is one document
(.json) or one a line (.jsonl); of a folder, every .json file is read. They become a run of their own; what
the store has no place for is counted. The folder of a `train` or `rollout` run is refused: its database holds
that run alone.

Example: `harnessgym traces import runs/others trajectories.jsonl --format atif`

JSON: {run_id, rollouts: [id], left_out: {field: count}}.

Exit status: 0 done; 2 an error: documents before one that is wrong are in the store."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("import", epilog=_EPILOG)
    def command(
        source: Source,
        file: Annotated[Path, typer.Argument(help="What to read.", metavar="FILE")],
        format: Annotated[str, typer.Option(help="Name of a format.")] = "atif",  # noqa: A002
        name: Annotated[str, typer.Option(help="Name of the run they become.")] = "import",
        as_json: AsJson = False,
    ) -> None:
        """Read rollouts of another project into a store, which is made if there is none."""
        from harnessgym.cli.traces.printed import console, notes, print_json
        from harnessgym.cli.traces.source import import_url
        from harnessgym.errors import TraceError
        from harnessgym.registry import load
        from harnessgym.store import TraceStore
        from harnessgym.traces.import_ import import_traces

        load("import", format)
        if not file.exists():
            raise TraceError(
                f"There is nothing to import at {file}: name a .json file, a .jsonl file or a folder of "
                ".json files."
            )
        with TraceStore.create(import_url(source)) as store, notes().status(f"Reading {file} ..."):
            made = import_traces(store, file, format, name)
        if as_json:
            print_json({"run_id": made.run_id, "rollouts": made.rollouts, "left_out": made.left_out})
            return
        out = console()
        out.print(f"Run {made.run_id}: {len(made.rollouts):,} rollouts.", markup=False)
        for field, count in sorted(made.left_out.items()):
            out.print(f"no place for {field}: {count:,} times", markup=False)
