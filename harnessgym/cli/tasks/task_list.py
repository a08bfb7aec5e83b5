"""`harnessgym tasks list`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from harnessgym.cli.tasks.arguments import AsJson

if TYPE_CHECKING:
    from harnessgym.task import Task
    from harnessgym.validation.baseline import Baseline

_EPILOG = """Examples:

`harnessgym tasks list`

`harnessgym tasks list shell`

`harnessgym tasks list harbor@my/tasks --json`

JSON without SPEC: {sets: [{name, loads, train, test, problem}], formats: [{name, what, written}]}; with SPEC:
{set, tasks: [{id, split, image, judge, limits, needs, solution, baseline, why, integrity, by_value,
fewest_differences}], problems, notes}. The last two are as in `harnessgym tasks check`.

Exit status: 0 done; 2 an error."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("list", epilog=_EPILOG)
    def command(
        spec: Annotated[
            str | None, typer.Argument(metavar="[SPEC]", help="Tasks; without it, what is registered.")
        ] = None,
        as_json: AsJson = False,
    ) -> None:
        """List what is registered and which formats are read; or the tasks of a set, and what was found of
        each.
        """
        if spec is None:
            _print_known(as_json)
        else:
            _print_tasks(spec, as_json)


def _print_known(as_json: bool) -> None:
    from harnessgym.cli.traces.printed import console, plain_table, print_json
    from harnessgym.registry import REGISTRY, names

    sets = [_set(name) for name in names("task_set")]
    formats = [_format(name) for name in names("task_format")]
    if as_json:
        print_json({"sets": sets, "formats": formats})
        return
    out = console()
    table = plain_table("set", "train", "test", "loads", right=("train", "test"))
    for each in sets:
        table.add_row(
            each["name"], _count(each["train"]), _count(each["test"]), each["problem"] or each["loads"]
        )
    out.print(table)
    out.print()
    table = plain_table("format", "written", "what it is")
    for each in formats:
        table.add_row(each["name"], "yes" if each["written"] else "", each["what"])
    out.print(table)
    only = sorted(REGISTRY["task_writer"].keys() - REGISTRY["task_format"].keys())
    if only:
        out.print(f"Written, not read: {', '.join(only)}")


def _set(name: str) -> dict[str, Any]:
    """A registered set, or the reason why it cannot be read here."""
    from harnessgym.errors import HarnessGymError
    from harnessgym.registry import REGISTRY
    from harnessgym.tasks.source import task_set

    row: dict[str, Any] = {
        "name": name,
        "loads": REGISTRY["task_set"][name],
        "train": None,
        "test": None,
        "problem": "",
    }
    try:
        whole_set = task_set(name)
        return row | {"train": len(whole_set.tasks("train")), "test": len(whole_set.tasks("test"))}
    except HarnessGymError as error:
        return row | {"problem": " ".join(str(error).split())}


def _format(name: str) -> dict[str, Any]:
    import sys

    from harnessgym.registry import REGISTRY
    from harnessgym.tasks.source import task_format

    what = (sys.modules[type(task_format(name)).__module__].__doc__ or "").strip().partition("\n")[0]
    return {"name": name, "what": what, "written": name in REGISTRY["task_writer"]}


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _print_tasks(spec: str, as_json: bool) -> None:
    from harnessgym.cli.tasks.arguments import say_remarks
    from harnessgym.cli.tasks.check import fewest
    from harnessgym.cli.traces.printed import console, one_line, plain_table, print_json
    from harnessgym.tasks.source import all_tasks, notes_of, problems_of, task_set
    from harnessgym.validation.baseline import Baseline, baseline_path

    whole_set = task_set(spec)
    book = Baseline(baseline_path(whole_set))
    tasks = all_tasks(whole_set)
    rows = [_task(task, book) for task in tasks]
    if as_json:
        print_json(
            {
                "set": whole_set.name,
                "tasks": rows,
                "problems": list(problems_of(whole_set)),
                "notes": list(notes_of(whole_set)),
            }
        )
        return
    out = console()
    columns = ("id", "split", "image", "judged by", "integrity", "by value", "limits", "baseline")
    table = plain_table(*columns, right=("by value",))
    for task, row in zip(tasks, rows, strict=True):
        state = f"{row['baseline']}: {one_line(row['why'][0], 100)}" if row["why"] else row["baseline"]
        entry = book.of(task)
        table.add_row(
            row["id"], row["split"], row["image"] or "", row["judge"], row["integrity"] or "",
            "" if entry is None else fewest(entry), _limits(row["limits"]), state,
        )  # fmt: skip
    out.print(table)
    say_remarks(whole_set, every=True)


def _task(task: "Task", book: "Baseline") -> dict[str, Any]:
    from harnessgym.validation.task_check import has_gold
    from harnessgym.validation.value_control import known_integrity

    entry = book.of(task)
    return {
        "id": task.id,
        "split": task.split,
        "image": task.image,
        "judge": judge(task),
        "limits": limits(task),
        "needs": sorted(task.needs),
        "solution": has_gold(task),
        "baseline": entry.state if entry is not None else "changed" if book.stale(task) else "unchecked",
        "why": [] if entry is None else list(entry.problems.values()),
        "integrity": known_integrity(task),
        "by_value": None if entry is None else entry.by_value,
        "fewest_differences": None if entry is None else entry.fewest_differences,
    }


def judge(task: "Task") -> str:
    """The kinds of a task's checks, or its grader."""
    from collections import Counter
    from collections.abc import Mapping

    tests = task.metadata.get("tests")
    kinds = (
        [each.get("kind") for each in tests if isinstance(each, Mapping)]
        if isinstance(tests, list | tuple)
        else []
    )
    if not kinds or None in kinds:
        return task.grader
    return ", ".join(f"{kind} x{count}" if count > 1 else str(kind) for kind, count in Counter(kinds).items())


def limits(task: "Task") -> dict[str, Any]:
    """A task's limits by name."""
    from dataclasses import asdict

    return asdict(task.limits)


def _limits(set_limits: dict[str, Any]) -> str:
    tokens = "" if set_limits["tokens"] is None else f", {set_limits['tokens']:,} tokens"
    return f"{set_limits['wall_s']:g} s, {set_limits['turns']} turns{tokens}, {set_limits['memory_mb']:,} MiB"
