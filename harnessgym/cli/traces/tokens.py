"""`harnessgym traces tokens`."""

from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.cli.traces.source import AsJson, Policy, Rollout, Source

if TYPE_CHECKING:
    from harnessgym.traces.token_lines import TokenLine, TokenRow, TokenRows

_EPILOG = """A token per line: its position in the row, id, text, mask (1: sampled, and trained in this row),
logprob under the policy that sampled it, policy version, advantage (once trained), the number of the call
that sampled it, the agent. Calls are numbered as `traces show` numbers them.

Examples:

`harnessgym traces tokens runs/quickstart latest --row 0`

`harnessgym traces tokens runs/wrap latest --call 3 --sampled`

JSON: [{row, call, call_id, excluded, tokens: [{position, id, text, mask, logprob, version, advantage, call,
agent}]}]; logprobs are the stored float32 values.

Exit status: 0 done; 2 an error."""
_HEAD = (
    f"{'position':>8} {'id':>7}  {'text':<24} {'mask':>4} {'logprob':>12} {'version':>7} {'advantage':>10} "
    f"{'call':>4}  agent"
)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("tokens", epilog=_EPILOG)
    def command(
        source: Source,
        rollout: Rollout,
        call: Annotated[
            int | None, typer.Option(help="What this call was given and what it sampled.", min=0)
        ] = None,
        row: Annotated[
            int | None,
            typer.Option(help="This training row; without --call and --row all are printed.", min=0),
        ] = None,
        sampled: Annotated[bool, typer.Option("--sampled", help="Leave out what was not sampled.")] = False,
        policy: Policy = None,
        as_json: AsJson = False,
    ) -> None:
        """Print training rows token by token, exactly as a trainer gets them."""
        from harnessgym.cli.traces.printed import print_json
        from harnessgym.cli.traces.source import traced
        from harnessgym.traces.token_lines import TokenRows

        if call is not None and row is not None:
            raise typer.BadParameter("--call and --row exclude each other.")
        with traced(source, rollout, policy) as traced_rollout:
            rows = [_kept(item, sampled) for item in _wanted(TokenRows(traced_rollout), call, row)]
        if as_json:
            print_json(rows)
        else:
            _print(rows)


def _wanted(rows: "TokenRows", call: int | None, row: int | None) -> "list[TokenRow]":
    if call is not None:
        return [rows.call(call)]
    return [rows.row(at) for at in (range(len(rows)) if row is None else (row,))]


def _kept(row: "TokenRow", sampled: bool) -> "TokenRow":
    from dataclasses import replace

    return (
        replace(row, tokens=tuple(line for line in row.tokens if line.call is not None)) if sampled else row
    )


def _print(rows: "list[TokenRow]") -> None:
    """Print plain lines, because a row may have a million tokens."""
    if not rows:
        typer.echo("The rollout has no training row: nothing that it sampled is trained.")
    for row in rows:
        name = "in no training row" if row.row is None else f"row {row.row}"
        why = f": {row.excluded}" if row.excluded else ""
        typer.secho(f"Call {row.call} ({row.call_id}), {name}{why}", bold=True)
        typer.secho(_HEAD, bold=True)
        for line in row.tokens:
            typer.secho(_line(line), fg="green" if line.mask else None, dim=not line.mask)


def _line(line: "TokenLine") -> str:
    import numpy as np

    # `repr` shows newlines and control characters as escapes. float32, because that is what is stored: more
    # digits would be noise.
    text = "" if line.text is None else repr(line.text)[1:-1]
    logprob, version = (
        (str(np.float32(line.logprob)), str(line.version)) if line.call is not None or line.mask else ("", "")
    )
    advantage = "" if line.advantage is None else f"{line.advantage:.6g}"
    call = "" if line.call is None else str(line.call)
    return (
        f"{line.position:>8} {line.id:>7}  {text:<24} {line.mask:>4} {logprob:>12} {version:>7} "
        f"{advantage:>10} {call:>4}  {line.agent}"
    ).rstrip()
