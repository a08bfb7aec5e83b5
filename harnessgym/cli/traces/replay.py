"""`harnessgym traces replay`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harnessgym.cli.traces.source import AsJson, Policy, Source

if TYPE_CHECKING:
    from harnessgym.reward import Rescored
    from harnessgym.traces.replay import ReplayReport

_EPILOG = """Every recorded request is read again from its stored body and goes through a proxy's own parts,
with the recorded tokens as answers, in the language of the policy that it asks; the prompts must be those of
the record, token for token. It stops at the first that is not. Nothing is written to the store.

Then the rewards of the run that need neither a sandbox nor a proxy are computed again, and must be the stored
ones.

Example: `harnessgym traces replay runs/wrap latest`

JSON: {ok, rollouts: [{rollout, ok, calls: [{call_id, ordinal, prompt_len, problem}], skipped:
[text], rewards: [{unit, target, channel, value, stored}]}]}.

Exit status: 0 every prompt and reward is the recorded one; 1 one is not, or a request is not there any more;
2 an error."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("replay", epilog=_EPILOG)
    def command(
        source: Source,
        rollouts: Annotated[
            list[str] | None,
            typer.Argument(help="Rollouts; all finished ones if none is given.", metavar="[ROLLOUT]..."),
        ] = None,
        policy: Policy = None,
        as_json: AsJson = False,
    ) -> None:
        """Put recorded requests through the proxy again and compare every prompt with the record."""
        from harnessgym.cli.traces.filters import selected
        from harnessgym.cli.traces.printed import print_json, progress
        from harnessgym.cli.traces.source import opened
        from harnessgym.reward import rescore
        from harnessgym.store.listing import RolloutFilter
        from harnessgym.traces.completions import Languages
        from harnessgym.traces.replay import replay

        languages = Languages.of(policy)
        with opened(source) as store:
            chosen = selected(store, rollouts, RolloutFilter(status="finished"))
            with progress() as bars:
                tracked = bars.track(chosen, description="rollouts")
                made = [_Replayed(replay(store, name, languages), rescore(store, name)) for name in tracked]
        ok = all(item.ok for item in made)
        if as_json:
            print_json({"ok": ok, "rollouts": [item.json() for item in made]})
        else:
            _print(made)
        if not ok:
            raise typer.Exit(1)


@dataclass(frozen=True)
class _Replayed:
    """The result of replaying one rollout."""

    report: "ReplayReport"
    rewards: "list[Rescored]"

    @property
    def ok(self) -> bool:
        return self.report.ok and all(item.same for item in self.rewards)

    def json(self) -> dict[str, Any]:
        """See the command's help."""
        rewards = [
            {
                "unit": item.row.unit,
                "target": item.row.target,
                "channel": item.row.channel,
                "value": item.row.value,
            }
            | {"stored": item.stored}
            for item in self.rewards
        ]
        of = {"rollout": self.report.rollout_id, "ok": self.ok}
        return {**of, "calls": self.report.calls, "skipped": self.report.skipped, "rewards": rewards}

    def result(self) -> str:
        """The result in a few words."""
        # The replay stops at the first difference, so that is the last call.
        if any(call.problem for call in self.report.calls):
            return f"differs at call {self.report.calls[-1].ordinal}"
        if self.report.skipped:
            return "cannot be read again"
        return "the same" if self.ok else "another reward"


def _print(made: list[_Replayed]) -> None:
    from harnessgym.cli.traces.printed import console, plain_table

    out = console()
    heads = ("rollout", "calls", "prompt tokens", "skipped", "rewards", "result")
    table = plain_table(*heads, right=heads[1:5])
    for item in made:
        report = item.report
        tokens = sum(call.prompt_len for call in item.report.calls)
        numbers = (str(len(report.calls)), f"{tokens:,}", str(len(report.skipped)), str(len(item.rewards)))
        table.add_row(report.rollout_id, *numbers, item.result())
    out.print(table)
    for item in made:
        for line in _problems(item):
            out.print(line, markup=False, style="red", soft_wrap=True)
        for reason in item.report.skipped:
            out.print(
                f"{item.report.rollout_id}: skipped {reason}", markup=False, style="dim", soft_wrap=True
            )


def _problems(item: _Replayed) -> Iterator[str]:
    rollout = item.report.rollout_id
    for call in item.report.calls:
        if call.problem is not None:
            yield f"{rollout}, call {call.ordinal} ({call.call_id}): {call.problem}"
    for again in item.rewards:
        if not again.same:
            row = again.row
            yield (
                f"{rollout}, reward {row.channel} of {row.unit} {row.target}: {row.value:g}, stored "
                f"{again.stored}"
            )
