"""`harnessgym tasks check`."""

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer

from harnessgym.cli.tasks.arguments import AsJson, Backend, Hidden, Limit, Only, Spec
from harnessgym.cli.traces.printed import notes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harnessgym.sandbox import SandboxBackend
    from harnessgym.task import Task, TaskSet
    from harnessgym.validation.baseline import Baseline, BaselineEntry
    from harnessgym.validation.task_check import CheckedTask, CheckPlan, Progress

_LINE_S = 15.0
"""Seconds between two lines without a terminal."""


class CheckProgress:
    """Context manager that draws progress. It may be called at any rate."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._console = notes()
        columns = (
            BarColumn(),
            TextColumn("{task.fields[facts]}"),
            TextColumn("{task.description}", style="dim"),
        )
        self._bar = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._shown = self._bar.add_task("", total=None, facts="")
        self._next = time.monotonic() + _LINE_S

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, progress: "Progress") -> None:
        """Draw the progress."""
        from rich.markup import escape

        facts = progress_line(progress)
        # Rich would read brackets in a task's id as markup.
        doing = escape(progress.doing[: max(20, self._console.width - 80)])
        self._bar.update(
            self._shown, total=progress.runs, completed=progress.done, facts=facts, description=doing
        )
        if not self._console.is_terminal and time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_S
            self._console.print(facts, markup=False)


def progress_line(progress: "Progress") -> str:
    """The progress of a check in one line."""
    eta = "" if progress.eta_s is None else f", {_time(progress.eta_s)} left"
    runs = f"{progress.done:,}/{progress.runs:,} runs"
    return (
        f"{runs}, {progress.finished:,}/{progress.tasks:,} tasks done, "
        f"{progress.tasks_per_minute:.1f} tasks/min{eta}"
    )


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7_200
        else f"{seconds / 3_600:.1f} h"
    )


_EPILOG = """The solution (gold) must score 1 each time, doing nothing 0, and every cheat 0 or be called
tampered with. No file that an agent's sandbox shows may have the solution or the tests; an agent's own
installation is not searched. What is found is kept in `baseline.json` beside the tasks, as it comes: the same
command goes on where it was interrupted, and a task that has not changed is not run again. Training refuses
tasks that failed.

A task that is judged by value (integrity: by_value) must also show its fault by value alone: for each of
`--seeds` seeds of fresh inputs, what nothing was done to must differ from the solution. `--second-opinion`
tries that with every task that has a solution, which is what a run with `second_opinion = "required"` needs;
a task that it cannot judge is named, and passes all the same for runs that do not ask for it.

Cheats are one of each class; `--cheats all` tries every one, `--cheats none` none.

Examples:

`harnessgym tasks check my_tasks/`

`harnessgym tasks check shell --sandbox docker --repeats 5 --cheats all`

`harnessgym tasks check my_tasks/ --second-opinion --cheats none`

JSON: {ok, baseline, tasks: [{id, state, why, gold, flake_rate, expected_flaky, nothing, cheats, integrity,
by_value, fewest_differences, ran, seconds}], counts, problems}. by_value: the differences for each seed, or
why the task cannot be judged by value, or null if that was not tried. States: passed, failed, no solution
(nothing and cheats got nothing, but no gold shows that the grader rewards anything), skipped (this sandbox
cannot take it), no answer (sandboxes failed, twice; that says nothing about the task).

Exit status: 0 no task failed; 1 one did, or could not be read, or got no answer, or nothing could be checked,
or `--second-opinion` found a task whose fault it does not show; 2 an error; 130 interrupted."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("check", epilog=_EPILOG)
    def command(
        spec: Spec,
        sandbox: Backend = "bubblewrap",
        repeats: Annotated[
            int, typer.Option(min=1, help="Times that the solution is run, to find flaky tasks.")
        ] = 3,
        cheats: Annotated[
            Literal["none", "quick", "all"], typer.Option(help="Which cheats are tried.")
        ] = "quick",
        jobs: Annotated[
            int | None, typer.Option(min=1, help="Tasks at one time; by default, as many as processors.")
        ] = None,
        seeds: Annotated[
            int, typer.Option(min=1, help="Seeds of fresh inputs that must show a task's fault by value.")
        ] = 3,
        second_opinion: Annotated[
            bool,
            typer.Option(
                "--second-opinion", help='Also try what a run with second_opinion = "required" needs.'
            ),
        ] = False,
        again: Annotated[bool, typer.Option("--again", help="Run also what was found out before.")] = False,
        hidden: Hidden = None,
        only: Only = None,
        limit: Limit = None,
        as_json: AsJson = False,
    ) -> None:
        """Run the solution, nothing and cheats on every task, and keep what is found beside the tasks."""
        import os

        from harnessgym.cli.traces.printed import print_json
        from harnessgym.grading.cheats import catalogue
        from harnessgym.tasks.source import chosen, problems_of, task_set
        from harnessgym.validation.baseline import Baseline, baseline_path
        from harnessgym.validation.task_check import CheckPlan

        tried = {"none": (), "quick": catalogue.QUICK, "all": tuple(catalogue.CHEATS.values())}[cheats]
        whole_set = task_set(spec)
        book = Baseline(baseline_path(whole_set))
        wanted = CheckPlan(sandbox, repeats, tried, seeds, second_opinion, again)
        tasks = chosen(whole_set, only, limit)
        checked = _run(tasks, book, wanted, jobs or os.cpu_count() or 1, tuple(hidden or ()))
        left_out = [] if only or limit else list(problems_of(whole_set))
        ok = _fine(checked) and not left_out and not (second_opinion and _weak(checked))
        if as_json:
            print_json(_as_json(checked, book.path, problems=list(problems_of(whole_set)), ok=ok))
        else:
            _print(checked, whole_set, book.path, second_opinion=second_opinion)
        if not ok:
            raise typer.Exit(1)


def _run(
    tasks: "Sequence[Task]", book: "Baseline", wanted: "CheckPlan", jobs: int, hidden: tuple[Path, ...]
) -> "list[CheckedTask]":
    """Check all tasks. An interruption loses only the checks in progress."""
    import asyncio
    import tempfile

    from harnessgym.cli.tasks.check import CheckProgress
    from harnessgym.process import hear_interruptions
    from harnessgym.validation.task_check import TaskSetCheck

    hear_interruptions()
    try:
        with tempfile.TemporaryDirectory(prefix="harnessgym-check-") as folder, CheckProgress() as observe:
            sandboxes = backend(wanted.sandbox, Path(folder), hidden)
            return asyncio.run(TaskSetCheck(sandboxes, book, wanted, observe).run(tasks, jobs))
    except KeyboardInterrupt:
        typer.echo("Interrupted. The same command goes on from here.", err=True)
        raise SystemExit(130) from None


def backend(name: str, folder: Path, hidden: tuple[Path, ...] = ()) -> "SandboxBackend":
    """A sandbox backend, not opened yet. Raises `SandboxError` if it cannot be used on this machine."""
    from harnessgym.errors import SandboxError
    from harnessgym.registry import load

    factory: Any = load("sandbox", name)
    problem = factory.unavailable()
    if problem is not None:
        raise SandboxError(problem)
    more = {"hidden": hidden} if hidden and "hidden" in factory.settings.model_fields else {}
    made: SandboxBackend = factory(factory.settings(workspace_root=folder, **more))
    return made


def _fine(checked: "Sequence[CheckedTask]") -> bool:
    states = {each.state for each in checked}
    return states.isdisjoint({"failed", "no answer"}) and bool(states - {"skipped"})


def _weak(checked: "Sequence[CheckedTask]") -> dict[str, str]:
    """The tasks that judging by value cannot judge or whose fault it does not show, and why."""
    from harnessgym.validation.value_control import value_weakness

    weak = {each.task: value_weakness(each.entry) for each in checked if each.entry is not None}
    return {task: why for task, why in weak.items() if why}


def _as_json(
    checked: "Sequence[CheckedTask]", path: Path, *, problems: list[str], ok: bool
) -> dict[str, Any]:
    from collections import Counter

    rows = []
    for each in checked:
        entry = each.entry
        rows.append({
            "id": each.task,
            "state": each.state,
            "why": list(each.why),
            "gold": [] if entry is None else list(entry.gold),
            "flake_rate": None if entry is None else entry.flake_rate,
            "expected_flaky": None if entry is None else entry.expected_flaky,
            "nothing": None if entry is None else entry.nothing,
            "cheats": {} if entry is None else entry.cheats,
            "integrity": None if entry is None else entry.integrity,
            "by_value": None if entry is None else entry.by_value,
            "fewest_differences": None if entry is None else entry.fewest_differences,
            "ran": each.ran,
            "seconds": round(each.seconds, 2),
        })  # fmt: skip
    counts = dict(Counter(each.state for each in checked))
    return {"ok": ok, "baseline": str(path), "tasks": rows, "counts": counts, "problems": problems}


def _print(
    checked: "Sequence[CheckedTask]", task_set: "TaskSet", path: Path, *, second_opinion: bool
) -> None:
    from collections import Counter

    from harnessgym.cli.tasks.arguments import say_remarks
    from harnessgym.cli.traces.printed import console, plain_table

    out = console()
    columns = ("id", "state", "gold", "nothing", "cheats", "integrity", "by value", "ran")
    table = plain_table(*columns, right=("gold", "nothing", "by value", "ran"))
    for each in checked:
        style = {"passed": "green", "failed": "bold red"}.get(each.state, "yellow")
        table.add_row(each.task, f"[{style}]{each.state}[/]", *_cells(each), str(each.ran or ""))
    out.print(table)
    for each in checked:
        for why in each.why:
            out.print(f"{each.task}: {why}", markup=False, soft_wrap=True)
    known = {why for each in checked for why in each.why}
    for task, why in _weak(checked).items() if second_opinion else ():
        if why not in known:
            out.print(f"{task}: no second opinion: {why}", style="yellow", markup=False, soft_wrap=True)
    counts = Counter(each.state for each in checked)
    runs = [outcome for each in checked if each.entry is not None for outcome in each.entry.gold]
    state_counts = ", ".join(f"{count} {state}" for state, count in counts.most_common()) or "no tasks"
    out.print(
        f"{state_counts}. Solutions were rewarded in {sum(run == 1.0 for run in runs)} of {len(runs)} runs. "
        f"{path}",
        soft_wrap=True,
    )
    say_remarks(task_set)


def _cells(checked: "CheckedTask") -> tuple[str, ...]:
    """Cells of a row: rewarded gold runs of all, the reward of doing nothing, failed cheats of all, how it is
    judged, and the smallest number of differences by value.
    """
    entry = checked.entry
    if entry is None:
        return ("",) * 5
    gold = f"{sum(each == 1.0 for each in entry.gold)}/{len(entry.gold)}" if entry.gold else "-"
    tried = [name for name, outcome in entry.cheats.items() if outcome != "does not apply"]
    cheats = f"{sum(name not in entry.problems for name in tried)}/{len(tried)}" if tried else "-"
    return gold, _shown(entry.nothing), cheats, entry.integrity or "", fewest(entry)


def fewest(entry: "BaselineEntry") -> str:
    """The smallest number of differences of any seed; "none" if the task cannot be judged by value."""
    if isinstance(entry.by_value, str):
        return "none"
    return "" if entry.fewest_differences is None else f"{entry.fewest_differences}+"


def _shown(outcome: Any) -> str:
    return outcome if isinstance(outcome, str) else "-" if outcome is None else f"{outcome:g}"
