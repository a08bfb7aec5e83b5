"""`harnessgym tasks convert`."""

from pathlib import Path
from typing import Annotated

import typer

from harnessgym.cli.tasks.arguments import AsJson, Limit, Only, Spec

_EPILOG = """Examples:

`harnessgym tasks convert shell --to native my_shell_tasks`

`harnessgym tasks convert harbor@tasks/ --to native mine --limit 20`

What a format cannot say is reported. A task that would be another one in it is refused, with the reason; the
others are written.

JSON: {written: [{task, folder, notes}], refused: [{task, why}]}.

Exit status: 0 everything was written; 1 some tasks were refused; 2 an error, nothing was written."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("convert", epilog=_EPILOG)
    def command(
        spec: Spec,
        out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder, new or empty.")],
        to: Annotated[
            str,
            typer.Option("--to", metavar="FORMAT", help="A format that is written; `tasks list` says which."),
        ],
        add: Annotated[
            bool, typer.Option("--add", help="Write into a folder that is not empty. Nothing is replaced.")
        ] = False,
        only: Only = None,
        limit: Limit = None,
        as_json: AsJson = False,
    ) -> None:
        """Write tasks down in another format."""
        from harnessgym.cli.tasks.arguments import say_remarks
        from harnessgym.cli.traces.printed import console, notes, print_json
        from harnessgym.tasks.source import chosen, task_set
        from harnessgym.tasks.writing import convert, task_writer

        writer = task_writer(to)
        whole_set = task_set(spec)
        written = list(convert(chosen(whole_set, only, limit), writer, out, add=add))
        done = [each for each in written if not each.refused]
        refused = [each for each in written if each.refused]
        if as_json:
            rows = [
                {"task": each.task, "folder": str(each.folder), "notes": list(each.notes)} for each in done
            ]
            print_json(
                {"written": rows, "refused": [{"task": each.task, "why": each.refused} for each in refused]}
            )
        else:
            for each in done:
                for note in each.notes:
                    notes().print(f"{each.task}: {note}", markup=False)
            for each in refused:
                notes().print(f"{each.task}: not written. {each.refused}", markup=False)
            console().print(
                f"{out}: {len(done)} of {len(written)} tasks written in the format {to}.", markup=False
            )
            say_remarks(whole_set)
        if refused or not done:
            raise typer.Exit(1)
