"""Selects the rollouts of a command: the named ones, or those that match filters."""

from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.cli.traces.source import find

if TYPE_CHECKING:
    from harnessgym.store import TraceStore
    from harnessgym.store.listing import RolloutFilter

Run = Annotated[str | None, typer.Option(help="Only of this run: its id, how it begins, or `latest`.")]
Purpose = Annotated[
    str | None, typer.Option(help="Only of this purpose: train, before_greedy, after_greedy, ...")
]
Task = Annotated[str | None, typer.Option(help="Only of the task with this key.")]
Harness = Annotated[str | None, typer.Option(help="Only of this harness.")]
Status = Annotated[
    str | None, typer.Option(help="Only with this status: pending, running, finished, failed, ...")
]
StopReason = Annotated[str | None, typer.Option(help="Only those that stopped for this reason.")]
Verdict = Annotated[
    str | None, typer.Option(help="Only with this verdict: valid, tampered, infrastructure_error.")
]
MinReward = Annotated[float | None, typer.Option(help="Only with at least this reward.")]
MaxReward = Annotated[float | None, typer.Option(help="Only with at most this reward.")]


def selected(
    store: "TraceStore", rollouts: "list[str] | None", wanted: "RolloutFilter | None" = None
) -> list[str]:
    """Ids of the named rollouts, else of all that match, oldest first.

    Raises `StoreError` for an unknown rollout or run.
    """
    from harnessgym.store.listing import RolloutFilter, newest_rollouts

    if rollouts:
        return list(dict.fromkeys(find(store, name) for name in rollouts))
    asked = of_known_run(store, wanted or RolloutFilter())
    rows = store.read(lambda conn: newest_rollouts(conn, -1, asked))
    # The store lists the newest first.
    return [row.id for row in reversed(rows)]


def of_known_run(store: "TraceStore", wanted: "RolloutFilter") -> "RolloutFilter":
    """The filter with the run's full id. Raises `StoreError` unless exactly one run has the given prefix."""
    from dataclasses import replace

    from harnessgym.store.run_file import run_of

    run_prefix = wanted.run_id
    return (
        wanted
        if run_prefix is None
        else replace(wanted, run_id=store.read(lambda conn: run_of(conn, run_prefix)))
    )
