"""`harnessgym traces diff`."""

from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.cli.traces.source import AsJson, Policy, Rollout, Source

if TYPE_CHECKING:
    from rich.text import Text

    from harnessgym.traces.rollout_difference import BranchDifference

_EPILOG = """Branches (conversations that no call continues) are compared in pairs: the first message that
says something else, and the first token that is another, with the calls that sampled them.

Example: `harnessgym traces diff runs/quickstart 0660c4a1 0660c4a2`

JSON: {a, b, same, branches: [{ends: [call, call], agents: [name, name], message: {index, roles, diff}, token:
{position, lengths, ids, calls, before, texts}}]}; `ends` has null where a branch has no counterpart,
`message` and `token` are null where nothing differs.

Exit status: 0 they say the same; 1 they differ; 2 an error."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("diff", epilog=_EPILOG)
    def command(
        source: Source,
        a: Rollout,
        b: Annotated[str, typer.Argument(help="Another rollout.", metavar="ROLLOUT")],
        policy: Policy = None,
        as_json: AsJson = False,
    ) -> None:
        """Find where two rollouts part: the first message and the first token that differ, branch by
        branch.
        """
        if not _differ(source, a, b, policy, as_json):
            return
        raise typer.Exit(1)


def _differ(source: str, a: str, b: str, policy: list[str] | None, as_json: bool) -> bool:
    from harnessgym.cli.traces.printed import console, print_json
    from harnessgym.cli.traces.source import find, opened
    from harnessgym.traces.completions import Languages
    from harnessgym.traces.export import TracedRollout
    from harnessgym.traces.rollout_difference import compare_rollouts

    with opened(source) as store:
        languages = Languages.of(policy)
        one, other = (TracedRollout(store, find(store, name), languages) for name in (a, b))
        branches = compare_rollouts(one, other)
        differ = not all(item.same for item in branches)
        if as_json:
            print_json({"a": one.id, "b": other.id, "same": not differ, "branches": branches})
        else:
            out = console()
            for item in branches:
                out.print(_branch(item), soft_wrap=True)
            if not differ:
                out.print("[green]They say the same, token for token.[/green]")
    return differ


def _branch(item: "BranchDifference") -> "Text":
    from rich.text import Text

    ends = [
        "-" if end is None else f"#{end} {agent or ''}".strip()
        for end, agent in zip(item.ends, item.agents, strict=True)
    ]
    out = Text(f"Branch to {ends[0]} | {ends[1]}", style="bold")
    if None in item.ends:
        return out.append(
            f"\n  only in {'the second' if item.ends[0] is None else 'the first'}", style="yellow"
        )
    if item.same:
        return out.append("\n  the same", style="green")
    if item.message is not None:
        roles = " | ".join(role or "nothing" for role in item.message.roles)
        out.append(f"\n  message {item.message.index} ({roles})", style="yellow")
        for line in item.message.diff.splitlines():
            out.append(f"\n    {line}", style={"-": "red", "+": "green"}.get(line[:1], "dim"))
    else:
        out.append("\n  every message the same", style="green")
    if item.token is not None:
        token = item.token
        origins = " | ".join("given" if call is None else f"sampled by #{call}" for call in token.calls)
        lengths = " | ".join(f"{length:,}" for length in token.lengths)
        out.append(f"\n  token {token.position:,} of {lengths} ({origins})", style="yellow")
        out.append(f"\n    … {token.before!r}", style="dim")
        for sign, ident, text, style in zip("-+", token.ids, token.texts, ("red", "green"), strict=True):
            out.append(f"\n    {sign} {'the end' if ident is None else f'{ident} {text!r}'}", style=style)
    return out
