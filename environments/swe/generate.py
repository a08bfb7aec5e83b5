"""`python -m environments.swe.generate`: makes tasks from packages and writes their manifests.

Test runs that prove faults are cached on this machine, so an interrupted generation resumes where it stopped.
New tasks are judged by `pytest` alone until `python -m environments.swe.plans` has planned how to judge them
by value.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from environments.swe.generation import generate
from environments.swe.manifest import FOLDER, write
from environments.swe.package import package, packages
from environments.swe.sdist import cache
from environments.swe.tree import tree
from harnessgym.errors import HarnessGymError, SandboxError
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings


def command(
    package: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this package. Repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw of faults.")] = 0,
    per_package: Annotated[int, typer.Option(min=1, help="Tasks to make from each package.")] = 40,
    jobs: Annotated[int, typer.Option(min=1, help="Sandboxes that run tests at one time.")] = 2,
    out: Annotated[Path, typer.Option(help="Folder for the manifests.")] = FOLDER,
) -> None:
    """Make tasks from real packages: insert faults, prove which tests fail, describe the problem."""
    console = Console(stderr=True)
    try:
        asyncio.run(_generate(package or list(packages()), seed, per_package, jobs, out, console))
    except HarnessGymError as error:
        console.print(str(error), style="red", soft_wrap=True, markup=False)
        raise typer.Exit(2) from None


async def _generate(names: list[str], seed: int, wanted: int, jobs: int, out: Path, console: Console) -> None:
    problem = Bubblewrap.unavailable()
    if problem is not None:
        raise SandboxError(problem)
    columns = (
        TextColumn("{task.description:14}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    with (
        tempfile.TemporaryDirectory(prefix="harnessgym-swe-") as folder,
        Progress(*columns, console=console) as shown,
    ):
        async with Bubblewrap(BubblewrapSettings(workspace_root=Path(folder))) as backend:
            for name in names:
                chosen = package(name)
                bar = shown.add_task(name, total=wanted)
                began = time.monotonic()

                def report(tasks: int, tried: int, *, bar: int = bar, name: str = name) -> None:
                    shown.update(
                        bar,  # type: ignore[arg-type]
                        completed=tasks,
                        description=f"{name} ({tried})",
                    )

                made = await generate(
                    backend,
                    tree(chosen.name),
                    seed=seed,
                    wanted=wanted,
                    jobs=jobs,
                    folder=cache() / "proofs",
                    progress=report,
                )
                write(made, out)
                shown.update(bar, completed=len(made.entries))
                took = time.monotonic() - began
                console.print(
                    f"{name}: {len(made.entries)} tasks, {len(made.tests)} tests, {took:.0f} s", markup=False
                )


if __name__ == "__main__":
    typer.run(command)
