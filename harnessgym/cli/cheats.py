"""`harnessgym cheats`."""

from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.cli.tasks.arguments import Hidden

if TYPE_CHECKING:
    from pathlib import Path

    from harnessgym.grading.cheats.cheat import Cheat
    from harnessgym.grading.cheats.scripted_agent import CheatResult
    from harnessgym.task import Task

_EPILOG = """Every cheat runs in the agent's place, and what it leaves is graded as any other result. The gold
solution must score 1 and doing nothing 0 in the same run, or the task is broken.

`harnessgym cheats --tasks shell --sandbox docker`

`harnessgym cheats --tasks my_tasks/ --cheat conftest-hooks --cheat 6`

`harnessgym cheats --tasks swe --limit 1 --cheat 14 --disguises 5 --seed 3`

A disguise is named `NAME@SEED.NUMBER`; `--cheat` takes that name too.

In the table: a reward, T for tampered with, - for no verdict, loot for what should not have been got.

Exit status: 0 no cheat got anything, 1 one did or a task is broken, 2 an error (one message says what to
do)."""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("cheats", epilog=_EPILOG)
    def command(
        tasks: Annotated[str, typer.Option(metavar="SPEC", help="Task set, `module:Class` or folder.")],
        sandbox: Annotated[str, typer.Option(help="bubblewrap, docker or `module:Class`.")] = "bubblewrap",
        cheat: Annotated[
            list[str] | None,
            typer.Option(metavar="NAME", help="Only this one, or a number: this class. Repeatable."),
        ] = None,
        disguises: Annotated[
            int, typer.Option(min=0, help="Also so many disguises of each cheat that has any.")
        ] = 0,
        seed: Annotated[int, typer.Option(min=0, help="Draws the disguises.")] = 0,
        limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")] = None,
        hidden: Hidden = None,
        json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")] = False,
    ) -> None:
        """Run agents that cheat against tasks, sandbox and graders: every one must get nothing."""
        import asyncio
        import json as encoder

        from harnessgym.cli.traces.printed import console as stdout
        from harnessgym.grading.cheats import report
        from harnessgym.grading.cheats.catalogue import disguised, named
        from harnessgym.tasks.source import task_set

        cheats = disguised(named(cheat or ()), seed, disguises)
        whole_set = task_set(tasks)
        chosen = [*whole_set.tasks("train"), *whole_set.tasks("test")][:limit]
        results, skipped = asyncio.run(_run(chosen, cheats, sandbox, tuple(hidden or ())))
        if json:
            typer.echo(encoder.dumps(report.as_json(results, skipped), indent=2))
        else:
            console = stdout()
            console.print(report.table(results))
            for task, needed in skipped:
                console.print(f"{task}: skipped, the {sandbox} sandbox lacks {needed}", soft_wrap=True)
            for hole in report.holes(results):
                console.print(hole, soft_wrap=True, markup=False)
        if report.holes(results) or not results:
            raise typer.Exit(1)


async def _run(
    tasks: "list[Task]", cheats: "tuple[Cheat, ...]", sandbox: str, hidden: "tuple[Path, ...]"
) -> "tuple[list[CheatResult], list[tuple[str, str]]]":
    """The results in order, and the tasks that this backend cannot run."""
    import tempfile
    from pathlib import Path

    from rich.console import Console

    from harnessgym.cli.tasks.check import backend
    from harnessgym.grading.cheats.environment import provider_keys
    from harnessgym.grading.cheats.suite import missing, suite

    results: list[CheatResult] = []
    skipped: list[tuple[str, str]] = []
    with (
        provider_keys(),  # before the backend starts anything, which could inherit them
        tempfile.TemporaryDirectory(prefix="harnessgym-cheats-") as folder,
        Console(stderr=True).status("") as status,
    ):
        async with backend(sandbox, Path(folder), hidden) as opened, suite(opened) as running:
            for task in tasks:
                if needed := missing(task, opened):
                    skipped.append((task.id, needed))
                    continue
                async for result in running.run(task, cheats):
                    status.update(f"{result.task}: {result.cheat}")
                    results.append(result)
    return results, skipped
