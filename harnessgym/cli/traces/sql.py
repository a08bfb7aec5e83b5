"""`harnessgym traces sql`."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harnessgym.cli.traces.source import AsJson, Source

if TYPE_CHECKING:
    from harnessgym.store.plain_sql import Answered, Relation

_EPILOG = """Examples:

`harnessgym traces sql runs/quickstart 'SELECT harness, avg(reward) FROM v_rollout GROUP BY harness'`

`harnessgym traces sql runs/quickstart --schema`

`harnessgym traces sql runs/quickstart --csv 'SELECT * FROM v_turn' > turns.csv`

JSON: a list of objects, one per row, with the query's column names; bytes as hex. With `--schema`: [{name,
kind, columns: [{name, type}]}].

Exit status: 0 done; 2 an error, a statement that would write among them."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("sql", epilog=_EPILOG)
    def command(
        source: Source,
        query: Annotated[
            str, typer.Argument(help="One statement that reads; `-` takes it from stdin.", metavar="[QUERY]")
        ] = "",
        schema: Annotated[
            bool, typer.Option("--schema", help="List tables and views with their columns.")
        ] = False,
        csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
        limit: Annotated[int, typer.Option(help="Rows at most.", min=1)] = 1_000,
        as_json: AsJson = False,
    ) -> None:
        """Ask the database in plain SQL. Nothing can be changed by it."""
        if csv and as_json:
            raise typer.BadParameter("--csv and --json exclude each other.")
        if schema:
            _print_schema(source, as_json)
        elif not query:
            raise typer.BadParameter("Give a query, or --schema to see what there is.", param_hint="QUERY")
        else:
            _print_answer(source, sys.stdin.read() if query == "-" else query, limit, csv, as_json)


def _print_answer(source: str, query: str, limit: int, csv: bool, as_json: bool) -> None:
    from harnessgym.cli.traces.printed import notes, print_json
    from harnessgym.cli.traces.source import store_url
    from harnessgym.store.plain_sql import ask

    answer = ask(store_url(source), query, limit)
    if as_json:
        print_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    elif csv:
        _print_csv(answer)
    else:
        _print_table(answer)
    if answer.more:
        notes().print(f"The first {limit:,} rows; there are more: --limit N.")


def _print_csv(answer: "Answered") -> None:
    from csv import writer

    out = writer(sys.stdout, lineterminator="\n")
    out.writerow(answer.columns)
    out.writerows(
        [value.hex() if isinstance(value, bytes) else value for value in row] for row in answer.rows
    )


def _print_table(answer: "Answered") -> None:
    from rich.text import Text

    from harnessgym.cli.traces.printed import console, plain_table

    # As `Text`: values come from harnesses and may look like rich markup.
    table = plain_table()
    for at, name in enumerate(answer.columns):
        numbers = all(row[at] is None or isinstance(row[at], int | float) for row in answer.rows)
        table.add_column(Text(name), justify="right" if numbers else "left", overflow="fold")
    for row in answer.rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console().print(table)


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bytes():
            return f"<{len(value):,} bytes>"
        case float():
            return f"{value:.6g}"
        case _:
            return str(value)


def _print_schema(source: str, as_json: bool) -> None:
    from harnessgym.cli.traces.printed import print_json
    from harnessgym.cli.traces.source import opened
    from harnessgym.store.plain_sql import relations

    with opened(source) as store:
        schema = store.read(relations)
    if as_json:
        columns = [[{"name": name, "type": kind} for name, kind in item.columns] for item in schema]
        print_json(
            [
                {"name": item.name, "kind": item.kind, "columns": made}
                for item, made in zip(schema, columns, strict=True)
            ]
        )
    else:
        _print_relations(schema)


def _print_relations(relations: "list[Relation]") -> None:
    from harnessgym.cli.traces.printed import console, plain_table

    table = plain_table("name", "kind", "columns")
    for item in relations:
        table.add_row(f"[bold]{item.name}[/bold]", item.kind, ", ".join(name for name, _ in item.columns))
    console().print(table)
