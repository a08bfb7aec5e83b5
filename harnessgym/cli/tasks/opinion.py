"""`harnessgym tasks opinion`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harnessgym.cli.tasks.arguments import AsJson, Backend, Hidden, Spec, TaskId

if TYPE_CHECKING:
    from harnessgym.grading.differential.suite import Opinion
    from harnessgym.task import Grade, Task

_EPILOG = """What the folder holds is laid over what the task begins with, graded as an agent's work is, and
compared with the task's solution: functions that differ are called with the arguments that tests use and with
others made from them, and the developers' own tests are run. Tests can accept what behaves otherwise than the
solution; this finds some of it.

Examples:

`harnessgym tasks opinion shell running-median my_attempt/`

JSON: {task, reward, tampered, second_opinion: {agrees, why?, differs: [{function, kind, arguments, gold,
candidate}], differences, inputs, functions, left_out, suite}}.

Exit status: 0 it agrees; 1 it differs, or there is no opinion; 2 an error."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("opinion", epilog=_EPILOG)
    def command(
        spec: Spec,
        task: TaskId,
        folder: Annotated[
            Path, typer.Argument(help="What an agent left: its files.", exists=True, file_okay=False)
        ],
        sandbox: Backend = "bubblewrap",
        hidden: Hidden = None,
        as_json: AsJson = False,
    ) -> None:
        """Compare a solution that tests accept with the task's own, on inputs that the tests do not have."""
        import asyncio

        from harnessgym.cli.traces.printed import print_json
        from harnessgym.tasks.source import all_tasks, named, task_set

        chosen = named(all_tasks(task_set(spec)), task)
        grade, opinion = asyncio.run(_asked(chosen, folder, sandbox, tuple(hidden or ())))
        if as_json:
            grade_fields: dict[str, Any] = {
                "task": chosen.id,
                "reward": grade.rewards["reward"],
                "tampered": grade.tampered,
            }
            print_json({**grade_fields, "second_opinion": opinion.to_dict()})
        else:
            _print(grade, opinion)
        if opinion.agrees is not True:
            raise typer.Exit(1)


async def _asked(
    task: "Task", folder: Path, sandbox: str, hidden: tuple[Path, ...]
) -> "tuple[Grade, Opinion]":
    """The grade and its second opinion."""
    import tempfile

    from harnessgym.cli.tasks.check import backend
    from harnessgym.grading.artifacts import collected_artifacts
    from harnessgym.grading.cheats.scripted_agent import ScriptedAgent
    from harnessgym.grading.differential.differential_test import opinion_on
    from harnessgym.grading.grade import verdict
    from harnessgym.grading.upload import lay
    from harnessgym.sandbox import needs, require

    with tempfile.TemporaryDirectory(prefix="harnessgym-task-") as root:
        async with backend(sandbox, Path(root), hidden) as opened:
            require(opened.capabilities, needs(task))
            stand_in = ScriptedAgent(opened)
            fresh = stand_in.fresh(task)
            async with stand_in.furnished(task) as place:
                await lay(folder, place)
                async with collected_artifacts(task, place) as evidence:
                    grade = await verdict(task, evidence, place if task.verifier == "shared" else None, fresh)
                    return grade, await opinion_on(task, evidence.folder, fresh)


def _print(grade: "Grade", opinion: "Opinion") -> None:
    from harnessgym.cli.traces.printed import console

    out = console()

    def say(text: str, style: str = "") -> None:
        out.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    say(
        f"reward {grade.rewards['reward']:g}"
        + (f", tampered with: {grade.tampered}" if grade.tampered else "")
    )
    if opinion.agrees is None:
        say(f"no opinion: {opinion.why}", "yellow")
    else:
        tried = f"{opinion.inputs} calls of {', '.join(opinion.functions) or 'no function'}"
        say(*(("agrees", "bold green") if opinion.agrees else ("differs", "bold red")))
        say(f"  compared: {tried}")
    for difference in opinion.differs[:20]:
        say(
            f"  {difference.function}{difference.arguments}: {difference.gold}, here {difference.candidate} "
            f"({difference.kind})"
        )
    if opinion.suite is not None:
        report = opinion.suite.to_dict()
        failed = ", ".join(report["failed"]) or "none"
        say(f"  the developers' tests: {report['verdict']}, {report['passed']} passed; failed: {failed}")
    for place, why in opinion.left_out.items():
        say(f"  left out: {place}: {why}")
