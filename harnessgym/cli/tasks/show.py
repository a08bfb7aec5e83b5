"""`harnessgym tasks show`."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harnessgym.cli.tasks.arguments import AsJson, Spec, TaskId

if TYPE_CHECKING:
    from harnessgym.task import Setup, Solution, Task
    from harnessgym.validation.baseline import BaselineEntry

_EPILOG = """What an agent sees comes first, then what is secret: what judges it, with every test, and with
--gold the solution.

Examples:

`harnessgym tasks show shell free-slots`

`harnessgym tasks show my_tasks/ running-total --gold --full`

JSON: {task: every field of harnessgym.task.Task, secret: [names of the fields that agents never see],
baseline: what was found of it, or null}. Without --gold the solution is null.

Exit status: 0 done; 2 an error."""
SECRET = (
    "artifacts",
    "collect",
    "grader",
    "grading",
    "hooks",
    "metadata",
    "solution",
    "step_reward",
    "verifier",
)
"""Fields of a task that the agent never sees."""
Line = tuple[str, str]
"""A label and its text."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("show", epilog=_EPILOG)
    def command(
        spec: Spec,
        task: TaskId,
        gold: Annotated[bool, typer.Option("--gold", help="Show the solution too.")] = False,
        full: Annotated[bool, typer.Option("--full", help="Cut nothing.")] = False,
        as_json: AsJson = False,
    ) -> None:
        """Show one task: everything that an agent sees, and what judges it."""
        from harnessgym.cli.traces.printed import print_json
        from harnessgym.tasks.payload import payload_of
        from harnessgym.tasks.source import all_tasks, named, task_set
        from harnessgym.validation.baseline import Baseline, baseline_path

        whole_set = task_set(spec)
        chosen = named(all_tasks(whole_set), task)
        entry = Baseline(baseline_path(whole_set)).of(chosen)
        if as_json:
            payload = payload_of(chosen)
            if not gold:
                payload["solution"] = None
                payload["steps"] = [{**step, "solution": None} for step in payload["steps"]]
            known = None if entry is None else entry.model_dump(mode="json")
            print_json({"task": payload, "secret": list(SECRET), "baseline": known})
        else:
            _print(chosen, entry, gold=gold, full=full)


def _print(task: "Task", entry: "BaselineEntry | None", *, gold: bool, full: bool) -> None:
    from rich.text import Text

    from harnessgym.cli.traces.printed import brief, console

    out = console()
    out.print(Text(task.id, style="bold").append(f"  {task.split}", style="dim"))
    parts = [
        ("What an agent sees", list(_seen(task))),
        ("Secret: what judges it", list(_judged(task, entry))),
    ]
    if gold:
        parts.append(("Secret: the solution", list(_solutions(task))))
    for title, lines in parts:
        out.print()
        out.print(title, style="bold cyan" if title.startswith("What") else "bold red", markup=False)
        for name, text in lines:
            short = "\n" not in text and len(text) < 120
            out.print(Text(f"  {name}", style="bold").append(f"  {text}" if short else "", style="not bold"))
            if not short:
                out.print(
                    "\n".join(f"    {line}" for line in brief(text, full=full).split("\n")),
                    markup=False,
                    soft_wrap=True,
                )


def _seen(task: "Task") -> Iterator[Line]:
    from harnessgym.cli.tasks.task_list import limits
    from harnessgym.task import Limits

    yield "instruction", task.instruction
    yield "image", task.image or "(the sandbox's own)"
    if task.home:
        yield "home", f"{task.home}, which is the workspace"
    if task.folders:
        yield "folders", " ".join(task.folders)
    for key, value in task.env.items():
        yield "env", f"{key}={value}"
    yield from _files("file", task.files)
    yield from _setup(task.setup)
    yield "limits", ", ".join(f"{key} {value}" for key, value in limits(task).items() if value is not None)
    if task.limits == Limits():
        yield "", "(all as they are by default)"
    if task.needs:
        yield "needs", ", ".join(sorted(task.needs))
    for step in task.steps:
        yield f"step {step.name}", step.instruction
        yield from _files(f"step {step.name}, file", step.files)
        yield from _setup(step.setup)


def _setup(setup: "Setup") -> Iterator[Line]:
    import shlex

    for command in setup.run:
        yield "set-up", shlex.join(command)
    if setup.hosts:
        yield "set-up reaches", ", ".join(setup.hosts)


def _judged(task: "Task", entry: "BaselineEntry | None") -> Iterator[Line]:
    import shlex

    from harnessgym.cli.tasks.task_list import judge
    from harnessgym.task import GradingImage
    from harnessgym.validation.task_check import has_gold
    from harnessgym.validation.value_control import known_integrity

    yield "grader", task.grader
    if judge(task) != task.grader:
        yield "checks", judge(task)
    if task.verifier == "shared":
        yield "graded in", "the agent's own sandbox (shared)"
    yield "artifacts", " ".join(task.artifacts)
    for name, hooks in (("", task.hooks), *((f", step {step.name}", step.hooks) for step in task.steps)):
        for hook in hooks:
            yield f"run before that{name}", shlex.join(hook.argv)
    if task.grading != GradingImage():
        yield "graded in the image", f"{task.grading.image or task.image or ''} {_text(task.grading.install)}"
    if task.collect:
        yield "collected too", " ".join(task.collect)
    for key, value in task.metadata.items():
        if key == "test_files" and isinstance(value, Mapping):
            yield from _files("test file", value)
        else:
            yield key, _text(value)
    yield "solution", "there is one (--gold shows it)" if has_gold(task) else "none"
    yield "integrity", known_integrity(task) or "(its checks cannot be read)"
    yield "baseline", "unchecked" if entry is None else entry.state
    yield from () if entry is None else _known(entry)


def _known(entry: "BaselineEntry") -> Iterator[Line]:
    for problem in entry.problems.values():
        yield "", problem
    if isinstance(entry.by_value, str):
        yield "by value", entry.by_value
    elif entry.by_value is not None:
        yield "by value", f"differences by seed: {', '.join(map(str, entry.by_value))}"


def _solutions(task: "Task") -> Iterator[Line]:
    for name, solution in (("", task.solution), *((f"{step.name}, ", step.solution) for step in task.steps)):
        if solution is not None:
            yield from _solution(name, solution)


def _solution(name: str, solution: "Solution") -> Iterator[Line]:
    yield from _files(f"{name}file", solution.files)
    for command in solution.run:
        yield f"{name}run", "\n".join(command)


def _files(name: str, files: Mapping[str, str]) -> Iterator[Line]:
    for path, text in sorted(files.items()):
        yield f"{name} {path} ({len(text.encode()):,} bytes)", text.rstrip("\n") or "(empty)"


def _text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, default=str)
