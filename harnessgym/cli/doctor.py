"""`harnessgym doctor`."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harnessgym.doctor.finding import DoctorFinding

_STYLES = {"ok": "green", "warn": "yellow", "missing": "bold red"}
_EPILOG = (
    "Exit status 1: something that `make quickstart` needs is missing. What is only a warning is for "
    "other lines."
)


def register(root: typer.Typer) -> None:
    """Add the command."""

    @root.command("doctor", epilog=_EPILOG)
    def command(
        json: Annotated[bool, typer.Option("--json", help="One JSON list instead of a table.")] = False,
    ) -> None:
        """Check what this machine can do, and say how to get what is missing."""
        from harnessgym.doctor.engine import engine
        from harnessgym.doctor.machine import agents, machine, packages, tools

        findings = [*packages(), *tools(), *engine(), *agents(), *machine()]
        (_print_json if json else _print_table)(findings)
        if any(finding.fatal for finding in findings):
            raise typer.Exit(1)


def _print_json(findings: "Sequence[DoctorFinding]") -> None:
    from dataclasses import asdict
    from json import dumps

    typer.echo(dumps([asdict(finding) for finding in findings], indent=2))


def _print_table(findings: "Sequence[DoctorFinding]") -> None:
    from rich.table import Table
    from rich.text import Text

    from harnessgym.cli.traces.printed import console as stdout

    table = Table("", "what", "state", "found", "what to do", show_edge=False, pad_edge=False)
    before = ""
    for finding in findings:
        topic = finding.topic if finding.topic != before else ""
        before = finding.topic
        state = Text(finding.state, _STYLES[finding.state])
        table.add_row(topic, finding.name, state, Text(finding.detail), Text(finding.remedy))
    console = stdout()
    console.print(table)
    missing = [finding.name for finding in findings if finding.fatal]
    console.print(
        f"Missing: {', '.join(missing)}." if missing else "The default line can run here.", markup=False
    )
