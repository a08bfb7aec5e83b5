"""`harnessgym train-worker`."""

from collections.abc import Callable
from typing import Any

import typer

from harnessgym.cli.service import OVERRIDES, ConfigOption, ShowOption, run_service


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command(
        "train-worker",
        context_settings=OVERRIDES,
        epilog="Any setting can be given as `--key value`; see --show-settings.",
    )
    def command(
        context: typer.Context, config: ConfigOption = None, show_settings: ShowOption = False
    ) -> None:
        """Train: take complete groups from the store, step, checkpoint, publish policy versions."""
        run_service("train-worker", config, context.args, show_settings, _algorithm)


def _algorithm(settings: Any) -> Callable[[Any], None]:
    """The algorithm that the run's configuration names."""
    from harnessgym.registry import load, look_in
    from harnessgym.run_folder import RunFolder

    config = RunFolder(settings.run).config()
    look_in(*config.code)
    algorithm: Callable[[Any], None] = load("algorithm", config.trainer.algorithm)
    return algorithm
