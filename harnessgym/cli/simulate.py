"""`harnessgym simulate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harnessgym.cli.service import OVERRIDES, ConfigOption, ShowOption, show_settings

if TYPE_CHECKING:
    from rich.console import Console

_EPILOG = """The decisions are made by the functions that runs use: admission, routing, consumption,
staleness. Queue, update leases and weight agents are modelled, durations are drawn, time is virtual, and
every figure is simulated. Any setting can be given as `--section.key value`, and wins over the file;
`--show-settings` lists them all. A quantity is a number, `lognormal:MEAN:SIGMA` or `pareto:MEAN:ALPHA`, with
a fourth part as its largest value.

How much faster than synchronous would this be, with 16 engines and a heavy tail?

`harnessgym simulate --engines.workers 16 --work.tokens pareto:400:1.8:8192 --seeds 10`

Which staleness is enough?

`harnessgym simulate --arm eta-1 --arm eta-2 --arm eta-4 --arm eta-8`

Draw from a recorded run what calls, environments and graders took:

`harnessgym simulate --replay runs/shell --engines.workers 4 --work.environments 32 --trainer.groups_per_step
8`

Kill a worker every 10 minutes and the trainer every hour:

`harnessgym simulate --arm eta-4 --failures.worker_s 600 --failures.trainer_s 3600`

Arms: sync, one-step, eta-N for any N, periodic, recycle, over-launch, as-given (the file's own settings). *of
the bound* compares the throughput with the least of four limits on the same draws: engines, graders, trainer,
and the path, which is the longest chain of rollouts that wait for an environment, batches that wait for a
version, and updates that wait for a step.

Exit status: 0 done, 2 an error (one message says what to do), 130 interrupted."""


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("simulate", context_settings=OVERRIDES, epilog=_EPILOG)
    def command(
        context: typer.Context,
        config: ConfigOption = None,
        arm: Annotated[
            list[str] | None,
            typer.Option("--arm", metavar="NAME", help="Way to train that is simulated. Repeatable."),
        ] = None,
        seeds: Annotated[
            int, typer.Option(min=1, help="Repetitions with other draws; the same for every arm.")
        ] = 1,
        replay: Annotated[
            Path | None, typer.Option(metavar="FOLDER", help="Draw from what this run folder recorded.")
        ] = None,
        json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")] = False,
        show: ShowOption = False,
    ) -> None:
        """Try ways to train on a virtual clock: throughput, idle shares and staleness, against what is
        possible at all.
        """
        import json as encoder

        from rich.console import Console

        from harnessgym.cli.traces.printed import console as stdout
        from harnessgym.config import load_config
        from harnessgym.registry import load

        model = load("settings", "simulate")
        if show:
            show_settings(model, "harnessgym simulate")
            return
        loaded = load_config(model, config, context.args)
        try:
            comparison = _compare(loaded, arm or (), seeds, replay, Console(stderr=True))
        except KeyboardInterrupt:
            typer.echo("Interrupted. Nothing was written.", err=True)
            raise SystemExit(130) from None
        if json:
            typer.echo(encoder.dumps(comparison.to_dict(), indent=2))
            return
        console = stdout()
        for table in comparison.tables():
            console.print(table)
        console.print(
            "All figures are simulated: see docs/scaling.md for what that cannot show.", highlight=False
        )


def _compare(
    config: Any, arms: "list[str] | tuple[()]", seeds: int, replay: Path | None, console: "Console"
) -> Any:
    """Simulate, with a progress bar on a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from harnessgym.registry import load

    with Progress(
        TextColumn("simulating {task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)

        def observe(arm: str, step: int) -> None:
            # Each seed of a variant begins again at step 1.
            if step == 1:
                bar.update(task, description=arm, total=config.trainer.steps)
            bar.update(task, completed=step)

        return load("service", "simulate")(config, arms, seeds, observe, replay)
