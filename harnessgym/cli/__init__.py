"""The command line. Commands import what they need when they run, so `--help` is fast."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NoReturn

import typer

from harnessgym.cli.system_problem import system_problem
from harnessgym.disk import full_disk
from harnessgym.errors import HarnessGymError
from harnessgym.process import PARENT
from harnessgym.registry import look_in


def app() -> typer.Typer:
    """The whole command tree."""
    from harnessgym.cli import (
        cheats,
        cluster,
        doctor,
        evaluate,
        first_run,
        images,
        install,
        names,
        processes,
        rollout,
        simulate,
        store,
        tasks,
        traces,
        train,
        train_offline,
        watch,
        weights,
        wrap,
    )

    root = typer.Typer(
        name="harnessgym",
        help="Train the model inside any agent harness, without touching the harness.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    for module in (
        first_run,
        train,
        train_offline,
        watch,
        simulate,
        rollout,
        evaluate,
        cheats,
        wrap,
        install,
        processes,
        store,
        names,
        doctor,
    ):
        module.register(root)
    root.add_typer(cluster.app, name="cluster")
    root.add_typer(tasks.app, name="tasks")
    root.add_typer(traces.app, name="traces")
    root.add_typer(images.app, name="images")
    root.add_typer(weights.app, name="weights")
    return root


@cache
def command() -> Callable[[Sequence[str] | None], Any]:
    """The command tree, built once: a service that is forked has it from the fork server."""
    return typer.main.get_command(app())


def main(words: Sequence[str] | None = None) -> None:
    """Entry point. Exit status 0: done; 1: done, and the answer is no; 2: an error; 130: interrupted.

    Our own errors and those of the system (a file, a disk, a library) are printed as one message without a
    traceback. `words` stand for those of the command line.
    """
    look_in(".")
    try:
        command()(words)
    except HarnessGymError as error:
        _give_up(str(error))
    except Exception as error:
        problem = system_problem(error)
        if problem is None:
            raise
        # Status 2 tells the supervisor not to restart this service. A system error may pass, except a full
        # disk.
        if PARENT in os.environ:  # a service: its log gets the traceback
            traceback.print_exc()
            _give_up(problem, status=2 if full_disk(error) else 1)
        _give_up(problem)


def _give_up(message: str, status: int = 2) -> NoReturn:
    sys.stderr.write(f"harnessgym: {message}\n")
    raise SystemExit(status) from None
