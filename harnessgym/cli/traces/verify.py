"""`harnessgym traces verify`."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from harnessgym.cli.traces.source import AsJson, Source

if TYPE_CHECKING:
    from rich.table import Table

    from harnessgym.traces.verification.findings import VerificationReport

_SHOWN_PER_KIND = 5
_EPILOG = """Example: `harnessgym traces verify runs/quickstart`

JSON: {ok, checked: {sessions, calls, unfinished, segments, tokens, routed_tokens, rollouts,
trained_tokens, excluded_tokens}, findings: [{kind, where, message}]}

Exit status: 0 everything agrees; 1 something contradicts; 2 an error."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("verify", epilog=_EPILOG)
    def command(
        source: Source,
        run: Annotated[str | None, typer.Option(help="Check this run only.")] = None,
        as_json: AsJson = False,
    ) -> None:
        """Rebuild every prompt and recount every token from the rows alone."""
        from harnessgym.cli.traces.printed import console, print_json, progress
        from harnessgym.cli.traces.source import opened
        from harnessgym.traces.verification.verify import verify

        with opened(source) as store, progress() as bars:
            bar = bars.add_task("sessions", total=None)
            report = verify(store, run, lambda done, total: bars.update(bar, completed=done, total=total))
        if as_json:
            print_json({"ok": report.ok, "checked": report.checked, "findings": report.findings})
        else:
            out = console()
            out.print(_counts(report))
            out.print("[green]Everything agrees.[/green]" if report.ok else _findings(report))
        if not report.ok:
            raise typer.Exit(1)


def _counts(report: "VerificationReport") -> "Table":
    from dataclasses import asdict

    from rich.table import Table

    table = Table("checked", "number", title="traces verify", title_justify="left")
    table.columns[1].justify = "right"
    for name, number in asdict(report.checked).items():
        table.add_row(name.replace("_", " "), f"{number:,}")
    return table


def _findings(report: "VerificationReport") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        "kind",
        "where",
        "what",
        title=f"{len(report.findings)} findings",
        title_justify="left",
        title_style="red",
    )
    shown: Counter[str] = Counter()
    for finding in report.findings:
        shown[finding.kind] += 1
        if shown[finding.kind] <= _SHOWN_PER_KIND:
            table.add_row(finding.kind, finding.where, escape(finding.message))
    for kind, number in shown.items():
        if number > _SHOWN_PER_KIND:
            table.add_row(kind, "", f"and {number - _SHOWN_PER_KIND} more")
    return table
