"""`harnessgym weights serve|mirror`."""

from pathlib import Path
from typing import Annotated

import typer

from harnessgym.cli.service import OVERRIDES, ConfigOption, ShowOption, run_service

app = typer.Typer(no_args_is_help=True, help="Policy versions on other machines: serve a run's, mirror another machine's.")

_SERVE = "Example: `HARNESSGYM_WEIGHTS_KEY=... harnessgym weights serve runs/mine/versions --host 0.0.0.0 --port 8900`"
_MIRROR = "Example: `HARNESSGYM_WEIGHTS_KEY=... harnessgym weights mirror http://trainer:8900 /var/tmp/versions`"


@app.command("serve", context_settings=OVERRIDES, epilog=_SERVE)
def serve(
    context: typer.Context,
    folder: Annotated[Path | None, typer.Argument(help="The `versions` folder of a run.")] = None,
    config: ConfigOption = None,
    show_settings: ShowOption = False,
) -> None:
    """Serve a folder of policy versions to other machines, read-only."""
    given = ["--folder", str(folder)] if folder is not None else []
    run_service("weights-server", config, [*given, *context.args], show_settings)


@app.command("mirror", context_settings=OVERRIDES, epilog=_MIRROR)
def mirror(
    context: typer.Context,
    url: Annotated[str | None, typer.Argument(help="Address of `harnessgym weights serve`.")] = None,
    folder: Annotated[Path | None, typer.Argument(help="Where versions are put.")] = None,
    config: ConfigOption = None,
    show_settings: ShowOption = False,
) -> None:
    """Keep the newest policy version of another machine here, fetching only what changed."""
    given = [*(["--url", url] if url else []), *(["--folder", str(folder)] if folder is not None else [])]
    run_service("weights-mirror", config, [*given, *context.args], show_settings)
