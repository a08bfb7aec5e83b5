"""Writes a run's file from a model, a task set and a harness: `harnessgym init`, and `train --model`."""

from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="FOLDER_OR_ID",
        help="Instead of a file: the model to train. Needs --tasks and --harness.",
    ),
]
TasksOption = Annotated[
    str | None,
    typer.Option("--tasks", metavar="SPEC", help="With --model: the tasks, such as swe, or a folder."),
]
HarnessOption = Annotated[
    str | None,
    typer.Option(
        "--harness", metavar="NAME", help="With --model: the agent, such as codex, or a command line."
    ),
]
GpusOption = Annotated[int, typer.Option("--gpus", min=0, help="With --model: GPUs to train on.")]
EngineOption = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="URL|embedded",
        help="With --model: a vLLM that serves it, or `embedded` (the default): the run's own engines.",
    ),
]


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("init")
    def command(
        file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("run.toml"),
        model: ModelOption = None,
        tasks: TasksOption = None,
        harness: HarnessOption = None,
        gpus: GpusOption = 0,
        engine: EngineOption = "",
    ) -> None:
        """Write a run file with sensible sizes. Asks for what is not given.

        Then read it, change it, and run it: `harnessgym train run.toml`.
        """
        from harnessgym.errors import ConfigError
        from harnessgym.registry import names

        if file.exists():
            raise ConfigError(f"{file} exists already. Remove it first, or name another file.")
        model = model or typer.prompt("Model (a folder, or an id on the hub)")
        tasks = tasks or typer.prompt(f"Tasks ({', '.join(names('task_set'))}, or a file or folder)")
        harness = harness or typer.prompt(f"Harness ({', '.join(names('harness'))}, or a command line)")
        _, text = run_file(model, tasks, harness, gpus, engine)
        file.write_text(text)
        typer.echo(text)
        typer.echo(f"Written to {file}. Run it: harnessgym train {file}")


def run_file(model: str, tasks: str, harness: str, gpus: int, engine: str) -> tuple[str, str]:
    """A run's name, and the text of its file. Raises `ConfigError`."""
    from harnessgym.registry import load

    first_run = load("settings", "trainers.policies.first_run:FirstRun")
    name, text = first_run(model, tasks, harness, gpus, engine).run_file()
    return str(name), str(text)


def written(
    model: str, tasks: str | None, harness: str | None, gpus: int, engine: str, folder: Path | None
) -> Path:
    """Writes the run's file beside its folder, and prints it. Returns its path.

    The same arguments give the same file, so the same command goes on. Raises `ConfigError` if another file
    is there.
    """
    from harnessgym.errors import ConfigError

    if not tasks or not harness:
        raise ConfigError("--model needs --tasks and --harness, such as --tasks swe --harness codex.")
    name, text = run_file(model, tasks, harness, gpus, engine)
    folder = folder or Path("runs") / name
    path = folder.with_name(f"{folder.name}.toml")
    if path.exists() and path.read_text() != text:
        raise ConfigError(
            f"{path} is another file than these options make. Run that one (`harnessgym train {path}`), "
            "remove it, or give another --folder."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    typer.echo(f"The run's file, {path}:\n\n{text}")
    return path
