"""`harnessgym list`."""

from typing import get_args

import typer


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("list")
    def command() -> None:
        """List what can be named in a configuration: task sets, harnesses, sandboxes, algorithms,
        dialects.
        """
        from rich.table import Table

        from harnessgym.cli.traces.printed import console
        from harnessgym.registry import REGISTRY, Kind

        table = Table("kind", "name")
        table.add_column("loads", overflow="fold")
        for kind in get_args(Kind):
            if kind not in ("service", "settings", "grader"):
                for name, target in sorted(REGISTRY[kind].items()):
                    table.add_row(kind, name, target)
        console().print(table)
        console().print("A full `module:Attribute` is accepted wherever a name is.")
