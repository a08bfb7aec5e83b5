"""`harnessgym traces list`."""

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

if TYPE_CHECKING:
    from harnessgym.store.listing import RolloutFilter

_EPILOG = """`group` is the purpose of the rollout's group, its number and the rollout's slot in it; `try`
counts attempts from 0.

Examples:

`harnessgym traces list runs/quickstart --harness openai --max-reward 0`

`harnessgym traces list runs/quickstart --stop-reason harness_error --json`

JSON: [{id, purpose, ordinal, slot, attempt, harness, status, stop_reason, verdict, reward, calls, tokens}].

Exit status: 0 done; 2 an error."""
_HEADS = ("id", "group", "harness", "try", "ended", "verdict", "reward", "calls", "tokens")


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("list", epilog=_EPILOG)
    def command(
        source: Source,
        run: Run = None,
        purpose: Purpose = None,
        task: Task = None,
        harness: Harness = None,
        status: Status = None,
        stop_reason: StopReason = None,
        verdict: Verdict = None,
        min_reward: MinReward = None,
        max_reward: MaxReward = None,
        limit: Annotated[int, typer.Option(help="Rollouts at most.", min=1)] = 30,
        as_json: AsJson = False,
    ) -> None:
        """List rollouts, newest first."""
        from harnessgym.store.listing import RolloutFilter

        wanted = RolloutFilter(
            run, purpose, task, harness, status, stop_reason, verdict, min_reward, max_reward
        )
        print_newest(source, limit, as_json, wanted)


def print_newest(source: str, limit: int, as_json: bool, wanted: "RolloutFilter | None" = None) -> None:
    """Print the newest rollouts that match."""
    from harnessgym.cli.traces.filters import of_known_run
    from harnessgym.cli.traces.printed import console, notes, plain_table, print_json
    from harnessgym.cli.traces.source import opened
    from harnessgym.store.listing import RolloutFilter, newest_rollouts

    with opened(source) as store:
        asked = of_known_run(store, wanted or RolloutFilter())
        rows = store.read(lambda conn: newest_rollouts(conn, limit + 1, asked))
    shown = rows[:limit]
    if as_json:
        print_json(shown)
    else:
        table = plain_table(*_HEADS, right=("try", "reward", "calls", "tokens"))
        for row in shown:
            place = f"{row.purpose} {row.ordinal}.{row.slot}"
            ended = row.stop_reason or row.status
            reward = "" if row.reward is None else f"{row.reward:g}"
            numbers = (reward, f"{row.calls:,}", f"{row.tokens:,}")
            table.add_row(row.id, place, row.harness, str(row.attempt), ended, row.verdict or "", *numbers)
        console().print(table)
    if len(rows) > limit:
        notes().print(f"The newest {limit:,}; there are more: --limit N.")
