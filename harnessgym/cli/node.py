"""`harnessgym node`."""

import typer

from harnessgym.cli.service import OVERRIDES, ConfigOption, ShowOption, run_service


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command(
        "node",
        context_settings=OVERRIDES,
        epilog="Any setting can be given as `--key value`; see --show-settings.",
    )
    def command(
        context: typer.Context, config: ConfigOption = None, show_settings: ShowOption = False
    ) -> None:
        """Run rollouts: claim them from the store, run harnesses in sandboxes, grade and record."""
        run_service("node", config, context.args, show_settings)
