"""Arguments and options that several commands share."""

from typing import Annotated

import typer

Source = Annotated[str, typer.Argument(help="Run folder, database file or database URL.", metavar="SOURCE")]
Rollout = Annotated[str, typer.Argument(help="Rollout id, how it begins, or `latest`.", metavar="ROLLOUT")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]
Policy = Annotated[
    list[str] | None,
    typer.Option(
        help="Model folder whose tokenizer to read answers with, where the one that the store names is not "
        "here; NAME=FOLDER "
        "for one of several policies, and then once for each.",
        metavar="[NAME=]FOLDER",
    ),
]
