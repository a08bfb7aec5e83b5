"""`harnessgym traces export`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.cli.traces.filters import Harness, MinReward, Purpose, Run, Task, Verdict
from harnessgym.cli.traces.source import AsJson, Policy, Source
from harnessgym.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress

_EPILOG = """Formats: areal, atif, datasets (Hugging Face), mas (awesome-llm-mas-rl), otel (OpenTelemetry
GenAI spans), parquet (training rows), sft (messages), trl, verl; or `module:Class` of your own.

Examples:

`harnessgym traces export runs/quickstart --format parquet --out rows.parquet`

`harnessgym traces export runs/quickstart --purpose train --min-reward 1 --format sft --out good.jsonl`

`harnessgym traces export runs/two --sampled-by helper --format trl --out helper.jsonl`

`harnessgym traces export runs/wrap latest --format atif --out trajectory.json`

JSON: {path, format, rollouts, records}.

Exit status: 0 done; 2 an error, and what stood at --out is untouched."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("export", epilog=_EPILOG)
    def command(
        source: Source,
        rollouts: Annotated[
            list[str] | None,
            typer.Argument(
                help="Rollouts; if none is given, all finished ones that meet the filters.",
                metavar="[ROLLOUT]...",
            ),
        ] = None,
        out: Annotated[Path, typer.Option(help="File or folder to write.")] = ...,  # type: ignore[assignment]
        format: Annotated[str, typer.Option(help="Name of a format.")] = "parquet",  # noqa: A002
        run: Run = None,
        purpose: Purpose = None,
        task: Task = None,
        harness: Harness = None,
        verdict: Verdict = None,
        min_reward: MinReward = None,
        sampled_by: Annotated[
            str | None,
            typer.Option(
                help="Of several policies the one whose tokens are written; formats that do not name it need "
                "this."
            ),
        ] = None,
        *,
        policy: Policy = None,
        as_json: AsJson = False,
    ) -> None:
        """Write rollouts in another project's form."""
        from harnessgym.cli.traces.filters import selected
        from harnessgym.cli.traces.printed import console, print_json, progress
        from harnessgym.cli.traces.source import opened
        from harnessgym.registry import load
        from harnessgym.store.listing import RolloutFilter
        from harnessgym.traces.completions import Languages
        from harnessgym.traces.export import export

        # An unknown format is refused before the store is opened.
        load("export", format)
        with opened(source) as store:
            wanted = RolloutFilter(
                run, purpose, task, harness, "finished", verdict=verdict, min_reward=min_reward
            )
            chosen = selected(store, rollouts, wanted)
            if not chosen:
                raise ConfigError(
                    f"No finished rollout of {source} meets the filters, and nothing was written to {out}. "
                    "`harnessgym traces list SOURCE` lists all."
                )
            with progress() as bars:
                made = export(store, _counted(chosen, bars), format, out, Languages.of(policy), sampled_by)
        if as_json:
            print_json(
                {"path": str(made.path), "format": format, "rollouts": made.rollouts, "records": made.records}
            )
        else:
            console().print(
                f"{made.path}: {made.records:,} records of {made.rollouts:,} rollouts ({format}).",
                markup=False,
            )


def _counted(rollouts: list[str], bars: "Progress") -> Iterator[str]:
    """Yield the items and show a progress bar."""
    rollout_ids: Iterable[str] = bars.track(rollouts, description="rollouts")
    yield from rollout_ids
