"""`harnessgym store freeze` and `thaw`."""

from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.cli.traces.filters import (
    Harness,
    MaxReward,
    MinReward,
    Purpose,
    Run,
    Status,
    StopReason,
    Task,
    Verdict,
)
from harnessgym.cli.traces.source import AsJson, Source
from harnessgym.errors import ConfigError

if TYPE_CHECKING:
    from harnessgym.store import TraceStore
    from harnessgym.store.listing import RolloutFilter

_EPILOG = """A frozen rollout keeps its trace as it is: calls, tokens, bodies, events, rewards and exclusions
refuse every change, whoever asks, also in plain SQL, and `harnessgym store prune` passes it over. Its
sessions are sealed: the proxy takes no further call. What is not finished, or waits to be trained, is
refused, and then nothing is frozen.

Examples:

`harnessgym store freeze runs/quickstart --run latest --purpose after_greedy`

`harnessgym store freeze runs/quickstart 0660c4d372175edb`

`harnessgym store thaw runs/quickstart 0660c4d372175edb`

JSON: {rollouts: those named or found, changed: how many were not frozen before}.

Exit status: 0 done; 2 an error, and nothing was changed."""
_THAW_EPILOG = """Its sessions stay sealed.

Example: `harnessgym store thaw runs/quickstart 0660c4d372175edb`

JSON: {rollouts: those named or found, changed: how many were frozen}.

Exit status: 0 done; 2 an error, and nothing was changed."""
Named = Annotated[
    list[str] | None,
    typer.Argument(
        help="Rollouts: ids, how they begin, or `latest`. Without any, all that meet the filters, of which "
        "one must be given.",
        metavar="[ROLLOUT]...",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""

    @app.command("freeze", epilog=_EPILOG)
    def freeze(
        source: Source,
        rollouts: Named = None,
        run: Run = None,
        purpose: Purpose = None,
        task: Task = None,
        harness: Harness = None,
        status: Status = None,
        stop_reason: StopReason = None,
        verdict: Verdict = None,
        min_reward: MinReward = None,
        max_reward: MaxReward = None,
        as_json: AsJson = False,
    ) -> None:
        """Keep rollouts as they are: their traces refuse every change until they are thawed."""
        from harnessgym.store.listing import RolloutFilter

        wanted = RolloutFilter(
            run, purpose, task, harness, status, stop_reason, verdict, min_reward, max_reward
        )
        _set(source, rollouts, wanted, as_json, frozen=True)

    @app.command("thaw", epilog=_THAW_EPILOG)
    def thaw(
        source: Source, rollouts: Named = None, run: Run = None, purpose: Purpose = None, task: Task = None,
        harness: Harness = None, as_json: AsJson = False,
    ) -> None:  # fmt: skip
        """Let frozen rollouts be changed and removed again."""
        from harnessgym.store.listing import RolloutFilter

        _set(source, rollouts, RolloutFilter(run, purpose, task, harness), as_json, frozen=False)


def _set(
    source: str, named: list[str] | None, wanted: "RolloutFilter", as_json: bool, *, frozen: bool
) -> None:
    from harnessgym.cli.traces.printed import console, print_json
    from harnessgym.cli.traces.source import opened
    from harnessgym.store import freezing

    with opened(source) as store:
        rollout_ids = _chosen(store, named, wanted, frozen=frozen)
        change = freezing.freeze if frozen else freezing.thaw
        changed = store.write(lambda conn: change(conn, rollout_ids))
    if as_json:
        print_json({"rollouts": rollout_ids, "changed": changed})
    else:
        done = "frozen" if frozen else "thawed"
        others = len(rollout_ids) - changed
        already = f", {others:,} {'were so already' if frozen else 'were not frozen'}" if others else ""
        console().print(f"{changed:,} rollouts {done}{already}.")


def _chosen(
    store: "TraceStore", named: list[str] | None, wanted: "RolloutFilter", *, frozen: bool
) -> list[str]:
    from dataclasses import replace

    from harnessgym.cli.traces.filters import selected
    from harnessgym.store.listing import RolloutFilter

    if named and wanted != RolloutFilter():
        raise ConfigError("Name rollouts or give filters, not both.")
    if not named and wanted == RolloutFilter():
        # Without a filter it would be the whole store, which nobody should freeze or thaw by accident.
        raise ConfigError(
            "Say which rollouts: name them, or give a filter, e.g. `--run latest` for all of the newest run."
        )
    return selected(store, named, wanted if frozen else replace(wanted, frozen=True))
