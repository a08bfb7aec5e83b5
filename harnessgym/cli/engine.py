"""`harnessgym engine`."""

from pathlib import Path
from typing import Annotated

import typer

from harnessgym.cli.service import OVERRIDES, ConfigOption, ShowOption, run_service

_EPILOG = """Any setting can be given as `--key value`; `--show-settings` lists them all.

Example: `harnessgym engine environments/lookup/policy --port 8000 --max_batch 16`"""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("engine", context_settings=OVERRIDES, epilog=_EPILOG)
    def command(
        context: typer.Context,
        model: Annotated[
            Path | None, typer.Argument(help="Model folder (config.json, model.safetensors, tokenizer.json).")
        ] = None,
        config: ConfigOption = None,
        show_settings: ShowOption = False,
    ) -> None:
        """Serve a model with the embedded engine: token ids in; ids, logprobs and policy versions out."""
        given = ["--model", str(model)] if model is not None else []
        run_service("engine", config, [*given, *context.args], show_settings)
