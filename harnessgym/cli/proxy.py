"""`harnessgym proxy`."""

import typer

from harnessgym.cli.service import OVERRIDES, ConfigOption, ShowOption, run_service

_EPILOG = """Any setting can be given as `--key value`; `--show-settings` lists them all.

Example: `HARNESSGYM_CONTROL_KEY=... harnessgym proxy --store sqlite:////tmp/traces.db --run_id RUN --policy MODEL --port 8100
--control_port 8101`"""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("proxy", context_settings=OVERRIDES, epilog=_EPILOG)
    def command(
        context: typer.Context, config: ConfigOption = None, show_settings: ShowOption = False
    ) -> None:
        """Serve the LLM API proxy: harnesses on one side, engines on the other, every token into the trace
        store.
        """
        run_service("proxy", config, context.args, show_settings)
