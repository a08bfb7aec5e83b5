"""`harnessgym install`."""

from typing import Annotated

import typer


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("install")
    def command(
        harnesses: Annotated[
            list[str] | None, typer.Argument(metavar="HARNESS...", help="Names; all if none is given.")
        ] = None,
    ) -> None:
        """Install agents into ~/.cache/harnessgym/agents, at the versions that the harnesses name.

        What is there already is left alone; what failed goes on where it stopped. Node agents
        need `npm`, and bring their own Node.
        """
        from pathlib import Path

        from rich.console import Console

        from harnessgym.harnesses.installation import install, installed
        from harnessgym.harnesses.program import ProgramConfig
        from harnessgym.registry import load, names

        console = Console(stderr=True)
        done = Console()
        for name in harnesses or [name for name in names("harness") if name != "command"]:
            factory = load("harness", name)
            settings = factory.settings
            if not issubclass(settings, ProgramConfig):
                console.print(f"{name}: nothing to install")
                continue
            described = factory(settings())
            folder = Path(settings().folder)
            steps = described.install()
            if not installed(steps, folder):
                with console.status(f"Installing {name} into {folder} ..."):
                    install(steps, folder)
            done.print(f"{name}: installed in {folder}", soft_wrap=True)
