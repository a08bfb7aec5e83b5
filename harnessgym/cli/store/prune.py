"""`harnessgym store prune`."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.cli.traces.filters import (
    Harness,
    MaxReward,
    MinReward,
    Purpose,
    Run,
    StopReason,
    Task,
    Verdict,
)
from harnessgym.cli.traces.source import AsJson, Source
from harnessgym.errors import ConfigError

if TYPE_CHECKING:
    from harnessgym.store.retention import Pruned, Retention

_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def seconds_of(age: str) -> float:
    """Parse an age such as `30d` to seconds. Raises `ConfigError` if it is not one."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", age.strip())
    if match is None:
        raise ConfigError(
            f"{age!r} is no age: write a number and s, m, h, d or w (seconds to weeks), e.g. 30d or 12h."
        )
    return float(match[1]) * _UNITS[match[2]]


_EPILOG = """Removes rollouts that ended long enough ago, with all their rows: calls, tokens, bodies, events,
edges, rewards. What stays, and is counted with the reason:

- frozen rollouts, and those that are not finished;

- rollouts of a run that is not done, because it could go on: `--abandoned` gives such runs up (stop them
first);

- rollouts that a policy version was trained on: the ledger would not say any more what made it. `--trained`
removes them together with their rows of the ledger; `harnessgym traces verify` then says nothing about them.

`--bodies-only` removes the requests and answers byte for byte and keeps everything else: tokens, ledger,
events and rewards; `traces verify`, `tokens` and training rows need no bodies, `traces show`, `replay` and
exports of messages do. It takes finished rollouts of every run, trained or not.

It may be interrupted at any time, and goes on when it is run again. Space goes back with `harnessgym store
vacuum`.

Examples:

`harnessgym store prune runs/quickstart --older-than 30d --dry-run`

`harnessgym store prune postgresql+psycopg://host/traces --older-than 7d --purpose train --bodies-only`

JSON: {dry_run, rollouts, rows: {TABLE: rows}, bytes: of tokens and texts, kept: {REASON: rollouts}}.

Exit status: 0 done; 2 an error, and what was removed until then is gone."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("prune", epilog=_EPILOG)
    def command(
        source: Source,
        *,
        older_than: Annotated[
            str,
            typer.Option(help="Only rollouts that ended at least this long ago: 30d, 12h, 2w; 0s for all."),
        ],
        run: Run = None,
        purpose: Purpose = None,
        task: Task = None,
        harness: Harness = None,
        stop_reason: StopReason = None,
        verdict: Verdict = None,
        min_reward: MinReward = None,
        max_reward: MaxReward = None,
        bodies_only: Annotated[
            bool, typer.Option("--bodies-only", help="Remove requests and answers, keep the rest.")
        ] = False,
        trained: Annotated[
            bool, typer.Option("--trained", help="Also what policy versions were trained on.")
        ] = False,
        abandoned: Annotated[
            bool, typer.Option("--abandoned", help="Also of runs that are not done.")
        ] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        """Remove old rollouts, or only their bodies."""
        from harnessgym.cli.store.prune import seconds_of
        from harnessgym.cli.traces.source import store_url
        from harnessgym.store.listing import RolloutFilter
        from harnessgym.store.retention import Retention

        url = store_url(source)
        wanted = RolloutFilter(
            _run_id(url, run), purpose, task, harness, None, stop_reason, verdict, min_reward, max_reward
        )
        retention = Retention(
            seconds_of(older_than), wanted, bodies_only=bodies_only, trained=trained, abandoned=abandoned
        )
        _print(_pruned(url, retention, dry_run), dry_run, as_json)


def _run_id(url: str, run: str | None) -> str | None:
    from harnessgym.store import TraceStore
    from harnessgym.store.run_file import run_of

    if run is None:
        return None
    with TraceStore.open(url) as store:
        return store.read(lambda conn: run_of(conn, run))


def _pruned(url: str, retention: "Retention", dry_run: bool) -> "Pruned":
    from harnessgym.cli.traces.printed import progress
    from harnessgym.store.retention import plan, prune

    if dry_run:
        return plan(url, retention)
    with progress() as bars:
        tasks = {name: bars.add_task(name, total=None) for name in ("rollouts", "texts")}
        return prune(
            url, retention, lambda what, done, total: bars.update(tasks[what], completed=done, total=total)
        )


def _print(pruned: "Pruned", dry_run: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from rich.filesize import decimal

    from harnessgym.cli.traces.printed import console, notes, plain_table, print_json

    if as_json:
        print_json({"dry_run": dry_run, **asdict(pruned)})
        return
    table = plain_table("table", "rows", right=("rows",))
    for name, count in pruned.rows.items():
        table.add_row(name, f"{count:,}")
    if pruned.rows:
        console().print(table)
    would = "would be " if dry_run else ""
    console().print(
        f"{pruned.rollouts:,} rollouts {would}pruned: {decimal(pruned.bytes)} of tokens and texts."
    )
    for reason, count in pruned.kept.items():
        notes().print(f"{count:,} rollouts stay: {reason}.", markup=False)
