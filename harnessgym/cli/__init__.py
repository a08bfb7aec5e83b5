"""The command line. One file per command; nothing heavy is imported before a command runs."""

import sys

import typer

from harnessgym.errors import HarnessGymError


def app() -> typer.Typer:
    """The whole command tree."""
    from harnessgym.cli import doctor, engine, names, node, proxy, store, traces, train, train_worker

    root = typer.Typer(
        name="harnessgym",
        help="Train the model inside any agent harness, without touching the harness.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    for module in (train, proxy, engine, node, train_worker, store, names, doctor):
        module.register(root)
    root.add_typer(traces.app, name="traces")
    return root


def main() -> None:
    """Entry point: errors of ours are one message and exit status 2, without a traceback."""
    try:
        app()()
    except HarnessGymError as error:
        sys.stderr.write(f"harnessgym: {error}\n")
        raise SystemExit(2) from None
