"""`harnessgym cluster`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from harnessgym.cli.service import OVERRIDES, ShowOption
from harnessgym.cli.train import ExtendOption

if TYPE_CHECKING:
    from harnessgym.run_config.run import RunConfig
    from harnessgym.run_folder import RunFolder
    from harnessgym.supervisor.processes import Processes

_HELP = """Run a training run on several machines: the processes of `harnessgym train`, placed by Ray.

1. Install the same HarnessGym on all machines, with its extras `ray` and `postgres`.

2. On one machine `ray start --head`; on each other one `ray start --address HEAD:6379`.

3. Give the run a PostgreSQL database of its own (`store.url`) and a folder that the machines of supervisor,
engines and trainer share, under the same path.

4. `harnessgym cluster run.toml --folder /shared/runs/mine` on any of the machines. The `cluster` section of
the file says how many nodes there are and what each process needs; without one, a single node, and a
processor for each process.

While it goes on, `harnessgym cluster nodes /shared/runs/mine --add 1` brings in another node, and `--remove
1` lets one leave when the rollouts that it has are done. A machine that dies is done without. Interrupted or
killed, the same command goes on.

What is shared, what travels unencrypted and what happens when which machine dies: docs/cluster.md."""
_EPILOG = (
    "Any setting can be given as `--section.key value`, and wins over the file; `--show-settings` lists "
    "them all."
)


class _Group(TyperGroup):
    """`harnessgym cluster run.toml` is short for `harnessgym cluster run run.toml`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Treat a word that is no command as the run's file."""
        return super().resolve_command(ctx, args if args[0] in self.commands else ["run", *args])


app = typer.Typer(cls=_Group, help=_HELP, no_args_is_help=True)


@app.command("run", context_settings=OVERRIDES, epilog=_EPILOG)
def run(
    context: typer.Context,
    config: Annotated[Path | None, typer.Argument(help="The run's TOML file.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the run, shared; runs/NAME if not given.")
    ] = None,
    extend: ExtendOption = False,
    show: ShowOption = False,
) -> None:
    """Run to the end, supervised from here, with a live dashboard: the default command."""
    from harnessgym.cli.train import run_file

    run_file(context, config, folder, _fleet, show=show, extend=extend)


@app.command("nodes")
def nodes(
    folder: Annotated[Path, typer.Argument(help="Folder of the run.")],
    add: Annotated[int, typer.Option(min=0, help="Nodes that are to join.")] = 0,
    remove: Annotated[
        int, typer.Option(min=0, help="Nodes that are to leave, when the rollouts that they have are done.")
    ] = 0,
) -> None:
    """Show the processes of a run and where they are; let nodes join or leave."""
    from harnessgym.cluster.backend import desired_nodes, set_desired_nodes
    from harnessgym.run_folder import RunFolder

    run_folder = RunFolder(folder)
    if add or remove:
        set_desired_nodes(run_folder, desired_nodes(run_folder) + add - remove)
    typer.echo(f"{desired_nodes(run_folder)} nodes are wanted.")
    _show_places(run_folder)


def _fleet(folder: "RunFolder", config: "RunConfig") -> "Processes":
    """The run's processes on Ray. Raises `ConfigError` without Ray, or if the run cannot be distributed."""
    import hashlib

    from harnessgym.cluster.fleet import Fleet, refuse_unshared
    from harnessgym.errors import ConfigError
    from harnessgym.process import hear_interruptions

    refuse_unshared(config)
    try:
        from harnessgym.cluster.ray_backend import RayBackend
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Running on a cluster needs {error.name}: pip install 'harnessgym-rl[ray]'."
        ) from error
    # The namespace follows from the folder, so that a restarted supervisor finds the actors of the killed
    # one.
    namespace = f"harnessgym-{hashlib.blake2b(str(folder.root).encode(), digest_size=8).hexdigest()}"
    ground = RayBackend(config.cluster, namespace)
    hear_interruptions()  # again, because Ray installs its own handlers
    return Fleet(folder, config, ground)


def _show_places(folder: "RunFolder") -> None:
    import json

    from rich.table import Table

    from harnessgym.cli.traces.printed import console

    try:
        rows: dict[str, dict[str, Any]] = json.loads((folder.root / "places.json").read_text())
    except FileNotFoundError:
        rows = {}
    if not rows:
        typer.echo("No process of it has a place now.")
        return
    table = Table("process", "state", "where", "restarts")
    for name, row in rows.items():
        table.add_row(name, row["state"], row["where"], str(row["restarts"]))
    console().print(table)
