"""`harnessgym train`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harnessgym.cli.first_run import (
    EngineOption,
    GpusOption,
    HarnessOption,
    ModelOption,
    TasksOption,
    written,
)
from harnessgym.cli.service import OVERRIDES, ShowOption, show_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from harnessgym.run_config.run import RunConfig
    from harnessgym.run_folder import RunFolder
    from harnessgym.supervisor import Supervisor
    from harnessgym.supervisor.processes import Processes


ExtendOption = Annotated[
    bool,
    typer.Option(
        "--extend", help="Lengthen the run of the folder to a larger trainer.steps, instead of refusing it."
    ),
]
_EPILOG = """Any setting can be given as `--section.key value`, and wins over the file; `--show-settings`
lists them all.

Example: `harnessgym train examples/quickstart.toml --folder runs/small --trainer.steps 3 --evaluation.tasks
0`

Without a file: `harnessgym train --model environments/lookup/policy --tasks lookup --harness
"python examples/lookup_openai.py"` makes one, prints it and runs it.

A finished run of 6 steps goes on to 8: `harnessgym train run.toml --folder runs/mine --trainer.steps 8
--extend`

Exit status: 0 done, 1 `--require-gain` not met, 2 an error (one message says what to do), 130 interrupted."""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("train", context_settings=OVERRIDES, epilog=_EPILOG)
    def command(
        context: typer.Context,
        config: Annotated[Path | None, typer.Argument(help="The run's TOML file.")] = None,
        folder: Annotated[
            Path | None, typer.Option(help="Folder of the run; runs/NAME if not given.")
        ] = None,
        require_gain: Annotated[
            bool,
            typer.Option(
                "--require-gain", help="Exit with status 1 unless the gain's 95 % interval lies above 0."
            ),
        ] = False,
        extend: ExtendOption = False,
        show: ShowOption = False,
        model: ModelOption = None,
        tasks: TasksOption = None,
        harness: HarnessOption = None,
        gpus: GpusOption = 0,
        engine: EngineOption = "",
    ) -> None:
        """Run a training run on this machine: proxy, engines, node and trainer, supervised, with a live
        dashboard.

        Interrupted or killed, the same command goes on where the run stood.
        """
        if model is not None:
            # Without a file, the first word of the overrides is taken for it.
            if config is not None and str(config).startswith("--"):
                context.args.insert(0, str(config))
                config = None
            if config is not None:
                raise typer.BadParameter("give a run's TOML file, or --model with --tasks and --harness")
            config = written(model, tasks, harness, gpus, engine, folder)
            folder = folder or config.with_suffix("")
        summary = run_file(context, config, folder, show=show, extend=extend)
        if summary is not None and require_gain and not _gained(summary):
            typer.echo("The 95 % interval of the gain does not lie above 0: nothing was learnt.", err=True)
            raise typer.Exit(1)


def run_file(
    context: typer.Context,
    config: Path | None,
    folder: Path | None,
    children: "Callable[[RunFolder, RunConfig], Processes] | None" = None,
    *,
    show: bool,
    extend: bool = False,
) -> dict[str, Any] | None:
    """Run a TOML file with overrides. Returns the run's summary; None if the settings were only shown."""
    from harnessgym.config import load_config
    from harnessgym.run_config.run import RunConfig

    if show:
        show_settings(RunConfig, context.command_path)
        return None
    if config is None:
        raise typer.BadParameter(f"give the run's TOML file, e.g. `{context.command_path} run.toml`")
    try:
        loaded = load_config(RunConfig, config, context.args).beside(config)
        return run_to_its_end(loaded, folder or Path("runs") / loaded.name, children, extend=extend)
    except KeyboardInterrupt:
        typer.echo("Interrupted. The same command goes on from here.", err=True)
        raise SystemExit(130) from None


def run_to_its_end(
    config: "RunConfig",
    root: Path,
    children: "Callable[[RunFolder, RunConfig], Processes] | None" = None,
    *,
    extend: bool = False,
) -> dict[str, Any]:
    """Run to the end, with local processes or those that `children` makes. Returns the summary.

    After an interruption every process of the run has ended, and the run can be resumed.
    """
    from functools import partial

    from rich.console import Console

    from harnessgym.process import hear_interruptions
    from harnessgym.supervisor import Supervisor, claim_folder, prepare, start_run
    from harnessgym.supervisor.preparation import resolved

    hear_interruptions()
    console = Console()
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    folder = prepare(config, root, say, extend=extend, here=children is None)
    # The returned descriptor is never closed, so the claim lasts until this process ends.
    claim_folder(folder)
    processes = children and children(
        folder, resolved(config)
    )  # raises for a run that cannot be spread: first
    say(str(start_run(folder, config, say, extend=extend)))
    supervisor = Supervisor(folder, children=processes)
    try:
        _serve(supervisor, console)
        return _conclude(supervisor, console)
    finally:
        supervisor.close()


def _serve(supervisor: "Supervisor", console: "Console") -> None:
    """Serve the run, show and record its progress, and feed its sinks."""
    from functools import partial

    from harnessgym.cli.live_view import Dashboard
    from harnessgym.metrics.feed import feeding
    from harnessgym.metrics.sink import SinkPlace
    from harnessgym.registry import load
    from harnessgym.supervisor.observed_metrics import StepLog
    from harnessgym.supervisor.processes import restarts
    from harnessgym.supervisor.progress import RunObserver

    folder = supervisor.folder
    config = supervisor.config
    observer = RunObserver(folder, supervisor.store, partial(restarts, supervisor.children))
    dashboard = Dashboard(console, StepLog(folder.observed_path).recording(observer.look))
    place = SinkPlace(
        folder.root, supervisor.run_id, config.name, config.metrics.project, _public_settings(config)
    )
    sinks = {name: load("sink", name) for name in config.metrics.sinks}
    # The sinks end before the dashboard closes, so that their last messages appear above the panel.
    with dashboard, feeding(sinks, place, dashboard.say):
        supervisor.notify = dashboard.say
        supervisor.serve(dashboard)
        dashboard.finish()


def _public_settings(config: "RunConfig") -> dict[str, Any]:
    """The settings for sinks, which may upload them: without those that hold keys, passwords or addresses."""
    # Settings of harnesses and rewards may hold API keys; the store's URL may hold a password.
    secret: Any = {
        "harnesses": {"__all__": {"settings"}},
        "rewards": {"__all__": {"settings"}},
        "store": True,
        "engine": {"outside"},
    }
    return config.model_dump(mode="json", exclude=secret)


def _conclude(supervisor: Any, console: "Console") -> dict[str, Any]:
    """Write the summary and the curve, and print the result."""
    import json

    from harnessgym.run_folder import write_json
    from harnessgym.store.backend import file_of, shown
    from harnessgym.supervisor.progress import read_metrics
    from harnessgym.supervisor.summary import draw_curve, summarise

    folder = supervisor.folder
    sandbox = json.loads((folder.root / "sandbox.json").read_text())
    summary = summarise(supervisor.store, folder, supervisor.stages, sandbox)
    write_json(folder.summary_path, summary)
    draw_curve(read_metrics(folder), summary, folder.root / "curve.png")
    url = folder.store_url()
    _print(summary, folder.root, console, str(file_of(url) or shown(url)))
    return summary


def _print(summary: dict[str, Any], root: Path, console: "Console", store: str) -> None:
    from rich.table import Table

    table = Table(
        "",
        "before",
        "after",
        title=f"Held-out success ({summary['evaluation']['tasks']} tasks)",
        title_justify="left",
    )
    table.add_row("temperature 1", _percent(summary["success_before"]), _percent(summary["success_after"]))
    table.add_row("greedy", _percent(summary["greedy_before"]), _percent(summary["greedy_after"]))
    weighed = summary.get("trained_reward")
    if weighed is not None:
        table.add_row(
            "trained reward, temperature 1",
            *(_number(weighed[f"{when}_sampled"]) for when in ("before", "after")),
        )
    console.print(table)
    for line in _failures(summary["evaluation"]):
        console.print(line, highlight=False, soft_wrap=True)
    if weighed is not None:
        formula = weighed["formula"]
        console.print(
            f"Success is the grader's reward; what was trained on is {formula}.",
            highlight=False,
            soft_wrap=True,
        )
    low, high = summary["gain_ci95"]
    if low is not None:
        console.print(
            f"gain {summary['gain']:+.3f}, 95 % interval [{low:+.3f}, {high:+.3f}]", highlight=False
        )
    console.print(
        f"{summary['rollouts']} training rollouts ({summary['rollouts_per_s']}/s), {summary['calls']} calls, "
        f"{summary['tokens_sampled']} tokens sampled = {summary['tokens_trained']} trained + "
        f"{summary['tokens_excluded']} excluded, staleness at most {summary['max_staleness']} (η = "
        f"{summary['eta']})",
        highlight=False,
    )
    for name, policy in summary.get("policies", {}).items():
        if not policy["tokens_trained"]:
            console.print(f"The policy {name!r} was trained on no token.", highlight=False, style="yellow")
    console.print(f"{root}/summary.json, {root}/curve.png, {store}", highlight=False, soft_wrap=True)


def _failures(evaluation: dict[str, Any]) -> list[str]:
    """One line per evaluation about its infrastructure failures."""
    lines = []
    for purpose, causes in evaluation["failed_attempts"].items():
        if causes:
            cause_counts = ", ".join(f"{count} {cause}" for cause, count in causes.items())
            left = evaluation["not_graded"][purpose]
            rest = (
                f"{left} rollouts have no grade and are left out of these numbers"
                if left
                else "all were run again and graded"
            )
            lines.append(
                f"{purpose}: infrastructure failures ended {sum(causes.values())} attempts "
                f"({cause_counts}); {rest}."
            )
    return lines


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _gained(summary: dict[str, Any]) -> bool:
    low = summary["gain_ci95"][0]
    return low is not None and low > 0
