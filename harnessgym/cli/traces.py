"""`harnessgym traces`: check what a store claims, and look at it."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group
    from rich.table import Table
    from sqlalchemy import Connection

    from harnessgym.store.calls import RecordedCall
    from harnessgym.traces.findings import Report

app = typer.Typer(help="Check recorded traces, and look at them.", no_args_is_help=True)

_Source = Annotated[str, typer.Argument(help="Run folder, database file or database URL.", metavar="SOURCE")]
_SHOWN_PER_KIND = 5


@app.command("verify")
def verify_command(source: _Source, run: Annotated[str | None, typer.Option(help="Check this run only.")] = None) -> None:
    """Rebuild every prompt and recount every token from the rows alone. Exit status 1 if anything contradicts."""
    from rich.console import Console
    from rich.progress import Progress

    from harnessgym.store import TraceStore
    from harnessgym.traces.verify import verify

    console = Console()
    with TraceStore.open(store_url(source)) as store, Progress(console=console, transient=True) as progress:
        bar = progress.add_task("sessions", total=None)
        report = verify(store, run, lambda done, total: progress.update(bar, completed=done, total=total))
    console.print(_counts(report))
    if report.ok:
        console.print("[green]Everything agrees.[/green]")
        return
    console.print(_findings(report))
    raise typer.Exit(1)


@app.command("show")
def show_command(
    source: _Source,
    rollout: Annotated[str | None, typer.Argument(help="Rollout id, or how it begins.")] = None,
    limit: Annotated[int, typer.Option(help="Rollouts to list.")] = 30,
) -> None:
    """List the newest rollouts, or the calls of one as the forest they form."""
    from rich.console import Console

    from harnessgym.store import TraceStore

    with TraceStore.open(store_url(source)) as store:
        if rollout is None:
            Console().print(store.read(lambda conn: _rollouts(conn, limit)))
        else:
            Console().print(store.read(lambda conn: _forest(conn, rollout)))


def store_url(source: str) -> str:
    """The database URL of a run folder, a database file, or a URL."""
    if "://" in source:
        return source
    from harnessgym.run_folder import RunFolder

    folder = RunFolder(Path(source))
    if folder.config_path.is_file():
        return folder.store_url()
    return f"sqlite:///{folder.root / 'traces.db' if folder.root.is_dir() else folder.root}"


def _counts(report: "Report") -> "Table":
    from dataclasses import asdict

    from rich.table import Table

    table = Table("checked", "number", title="traces verify", title_justify="left")
    table.columns[1].justify = "right"
    for name, number in asdict(report.checked).items():
        table.add_row(name.replace("_", " "), f"{number:,}")
    return table


def _findings(report: "Report") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table("kind", "where", "what", title=f"{len(report.findings)} findings", title_justify="left", title_style="red")
    shown: Counter[str] = Counter()
    for finding in report.findings:
        shown[finding.kind] += 1
        if shown[finding.kind] <= _SHOWN_PER_KIND:
            table.add_row(finding.kind, finding.where, escape(finding.message))
    for kind, number in shown.items():
        if number > _SHOWN_PER_KIND:
            table.add_row(kind, "", f"and {number - _SHOWN_PER_KIND} more")
    return table


def _rollouts(conn: "Connection", limit: int) -> "Table":
    from rich.table import Table

    from harnessgym.store.listing import newest_rollouts

    heads = ("id", "group", "harness", "try", "ended", "verdict", "reward", "calls", "tokens")
    table = Table(*heads, title=f"The newest {limit} rollouts", title_justify="left", box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for row in newest_rollouts(conn, limit):
        place = f"{row.purpose} {row.ordinal}.{row.slot}"
        ended, reward = row.stop_reason or row.status, "" if row.reward is None else f"{row.reward:g}"
        table.add_row(row.id, place, row.harness, str(row.attempt), ended, row.verdict, reward, str(row.calls), str(row.tokens))
    return table


def _forest(conn: "Connection", prefix: str) -> "Group":
    """The calls of one rollout, session by session."""
    from rich.console import Group

    from harnessgym.errors import StoreError
    from harnessgym.store import calls, sessions
    from harnessgym.store.listing import rollouts_beginning

    found = rollouts_beginning(conn, prefix)
    if len(found) != 1:
        problem = "No rollout begins" if not found else "More than one rollout begins"
        raise StoreError(f"{problem} with {prefix!r}. `harnessgym traces show` without a rollout lists them.")
    session_ids = sessions.of_rollout(conn, found[0])
    return Group(*(_session(name, calls.of_sessions(conn, [name])) for name in session_ids))


def _session(session_id: str, found: "Sequence[RecordedCall]") -> "Table":
    from rich.table import Table

    heads = ("#", "continues", "kind", "status", "protocol", "prompt", "sampled", "versions", "finish")
    table = Table(*heads, title=f"Session {session_id}", title_justify="left", box=None, pad_edge=False)
    ordinals = {call.id: str(call.ordinal) for call in found}
    for call in found:
        versions = ",".join(str(span.version) for span in call.version_spans)
        continues = ordinals.get(call.parent_call_id or "", "")
        lengths = (str(call.prompt_len), "" if call.completion_len is None else str(call.completion_len))
        table.add_row(
            str(call.ordinal), continues, call.kind, call.status, call.protocol, *lengths, versions, call.finish_reason or ""
        )
    return table
