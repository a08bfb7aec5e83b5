"""`harnessgym proxy`."""

import typer

from harnessgym.cli.service import OVERRIDES, ConfigOption, ShowOption, run_service


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("proxy", context_settings=OVERRIDES, epilog="Any setting can be given as `--key value`; see --show-settings.")
    def command(context: typer.Context, config: ConfigOption = None, show_settings: ShowOption = False) -> None:
        """Serve the LLM API proxy: harnesses on one side, engines on the other, every token into the trace store."""
        run_service("proxy", config, context.args, show_settings)
