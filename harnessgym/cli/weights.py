"""`harnessgym weights serve|mirror|export`."""

from pathlib import Path
from typing import Annotated

import typer

from harnessgym.cli.service import OVERRIDES, ConfigOption, ShowOption, run_service

app = typer.Typer(
    no_args_is_help=True, help="Policy versions elsewhere: on other machines, or as a model folder."
)

_SERVE = (
    "Example: `HARNESSGYM_WEIGHTS_KEY=... harnessgym weights serve runs/mine/versions --host 0.0.0.0 "
    "--port 8900`"
)
_MIRROR = (
    "Example: `HARNESSGYM_WEIGHTS_KEY=... harnessgym weights mirror http://trainer:8900 /var/tmp/versions`"
)
_EXPORT = "Example: `harnessgym weights export runs/mine@12 models/mine`, then `vllm serve models/mine`"


@app.command("serve", context_settings=OVERRIDES, epilog=_SERVE)
def serve(
    context: typer.Context,
    folder: Annotated[Path | None, typer.Argument(help="The `versions` folder of a run.")] = None,
    config: ConfigOption = None,
    show_settings: ShowOption = False,
) -> None:
    """Serve a folder of policy versions to other machines, read-only."""
    overrides = ["--folder", str(folder)] if folder is not None else []
    run_service("weights-server", config, [*overrides, *context.args], show_settings)


@app.command("mirror", context_settings=OVERRIDES, epilog=_MIRROR)
def mirror(
    context: typer.Context,
    url: Annotated[str | None, typer.Argument(help="Address of `harnessgym weights serve`.")] = None,
    folder: Annotated[Path | None, typer.Argument(help="Where versions are put.")] = None,
    config: ConfigOption = None,
    show_settings: ShowOption = False,
) -> None:
    """Keep the newest policy version of another machine here, fetching only what changed."""
    overrides = [*(["--url", url] if url else []), *(["--folder", str(folder)] if folder is not None else [])]
    run_service("weights-mirror", config, [*overrides, *context.args], show_settings)


@app.command("export", epilog=_EXPORT)
def export(
    run: Annotated[
        str, typer.Argument(help="Run folder, for its newest version; `RUN@VERSION` for another.")
    ],
    folder: Annotated[Path, typer.Argument(help="Where the model folder is made.")],
    policy: Annotated[str, typer.Option(help="Which of the run's policies, if it trains several.")] = "",
) -> None:
    """Write a policy version as a Hugging Face model folder, which any engine loads."""
    from harnessgym.errors import ConfigError
    from harnessgym.evaluation.policies import checksum_of, find_policy
    from harnessgym.registry import load
    from harnessgym.run_folder import RunFolder

    named_policy = find_policy(run, policy)
    if named_policy.kind != "version" or named_policy.version is None:
        raise ConfigError(f"{run} is a model already: {named_policy.where}.")
    source = RunFolder(Path(named_policy.where), named_policy.policy)
    model = Path(source.config().of_policy(named_policy.policy).policy.path)
    load("service", "weights-export")(
        source.versions, named_policy.version, model, folder, checksum_of(named_policy)
    )
    typer.echo(f"{folder}: version {named_policy.version} of {source.root}")
