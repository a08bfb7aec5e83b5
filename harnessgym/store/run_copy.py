"""Copies a run from one database to another: every row that belongs to it, under the same ids.

What runs share is not duplicated: tasks are matched by set, key and payload, texts by their hash. Workers and
leases are not copied: they belong to processes.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import JSON, ColumnElement, Connection, Select, Table, Text, bindparam, cast, select, update

from harnessgym.errors import StoreError
from harnessgym.store.backend import insert_into
from harnessgym.store.owned_rows import OWNED, PARENTS, in_portions, owned, parents_first
from harnessgym.store.tables import bodies, groups, messages, policies, policy_versions, rollouts, runs, tasks

Row = Mapping[str, Any]
_PREFIX = "value_"
"""Prefix of bind parameters: SQLAlchemy reserves the plain column names in an insert."""


def reading(table: Table) -> Select[Any]:
    """Return a query of a table's rows. JSON columns come as the stored text, so a copy is exact."""
    columns = [
        cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column
        for column in table.c
    ]
    return select(*columns)


def write(conn: Connection, table: Table, rows: Sequence[Row], *, known: bool = False) -> None:
    """Insert rows that `reading` returned. With `known`, rows that exist already are skipped."""
    if not rows:
        return
    values: dict[str, Any] = {}
    for column in table.c:
        is_json = isinstance(column.type, JSON)
        parameter = bindparam(_PREFIX + column.name, type_=Text() if is_json else column.type)
        values[column.name] = (
            cast(parameter, JSON) if is_json and conn.dialect.name == "postgresql" else parameter
        )
    statement = insert_into(conn)(table).values(values)
    if known:
        statement = statement.on_conflict_do_nothing()
    conn.execute(statement, [{_PREFIX + name: value for name, value in row.items()} for row in rows])


_AT_ONCE = 1_000
"""Maximum number of rows that one statement reads or inserts."""
_TASK = ("set", "key", "payload_hash")
"""Columns that identify a task in every database."""


@dataclass
class RunCopy:
    """The copy of one run, in transactions that the caller manages."""

    source: Connection
    target: Connection
    run_id: str
    rows: Counter[str] = field(default_factory=Counter)
    """Rows copied, by table. A text counts once per portion that has it."""
    _tasks: dict[str, str] = field(default_factory=dict)
    """Maps ids of tasks in the source to their ids in the target."""

    def portions(self) -> Iterator[tuple[int, int]]:
        """Copy the run. Yields (rollouts copied, rollouts in total) after each portion.

        The target is consistent after each. Raises `StoreError` if the target has the run. A run that has no
        groups left in the target, only its name and policies, may be copied again.
        """
        self._refuse_known()
        self._copy(runs, runs.c.id == self.run_id, known=True)
        self._copy_tasks()
        self._copy(policies, policies.c.run_id == self.run_id, known=True)
        mine = select(policies.c.id).where(policies.c.run_id == self.run_id)
        self._copy(policy_versions, policy_versions.c.policy_id.in_(mine), known=True)
        self._copy(groups, groups.c.run_id == self.run_id)
        portions = in_portions(self.source, select(rollouts.c.id).where(rollouts.c.run_id == self.run_id))
        done = 0
        total = sum(map(len, portions))
        yield done, total
        for portion in portions:
            self._copy_rollouts(portion)
            done += len(portion)
            yield done, total

    def _refuse_known(self) -> None:
        if (
            self.target.execute(select(groups.c.id).where(groups.c.run_id == self.run_id).limit(1)).first()
            is not None
        ):
            raise StoreError(
                f"The target has run {self.run_id} already: nothing was changed. Give another database; runs "
                "are never merged."
            )

    def _copy_tasks(self) -> None:
        """Copy the run's tasks that the target lacks, and map the ids of all of them."""
        mine = [select(table.c.task_id).where(table.c.run_id == self.run_id) for table in (groups, rollouts)]
        for row in self._read(tasks, tasks.c.id.in_(mine[0].union(mine[1]))):
            self._write(tasks, [row], known=True)
            # If the target had the task already, its id there is another one than in the source.
            same = [tasks.c[name] == row[name] for name in _TASK]
            self._tasks[row["id"]] = self.target.execute(select(tasks.c.id).where(*same)).scalar_one()

    def _copy_rollouts(self, ids: Sequence[str]) -> None:
        """Copy rollouts with all their rows."""
        # A frozen rollout refuses new rows, so all are inserted as not frozen and frozen at the end.
        rollout_rows = self._read(rollouts, rollouts.c.id.in_(ids))
        self._write(rollouts, [{**row, "frozen": False} for row in self._with_tasks(rollout_rows)])
        # In the order of `OWNED`, with parents first within a table, so that every row refers only to rows
        # that exist. Foreign keys are checked with each statement.
        for table in OWNED:
            rows = self._read(table, owned(table, ids))
            if table is bodies:
                self._copy_texts(rows)
            parent = PARENTS.get(table.name)
            self._write(table, rows if parent is None else list(parents_first(rows, parent)))
        frozen = [row["id"] for row in rollout_rows if row["frozen"]]
        self.target.execute(update(rollouts).where(rollouts.c.id.in_(frozen)).values(frozen=True))

    def _copy_texts(self, rows: Sequence[Row]) -> None:
        """Copy the texts that bodies consist of."""
        wanted = {key for row in rows for key in json.loads(row["message_hashes"])}
        hashes = sorted(wanted | {row["remainder_hash"] for row in rows if row["remainder_hash"] is not None})
        for start in range(0, len(hashes), _AT_ONCE):
            some = messages.c.hash.in_(hashes[start : start + _AT_ONCE])
            self._write(messages, self._read(messages, some), known=True)

    def _copy(self, table: Table, condition: ColumnElement[bool], *, known: bool = False) -> None:
        self._write(table, list(self._with_tasks(self._read(table, condition))), known=known)

    def _with_tasks(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Yield the rows with the ids of the target's tasks."""
        for row in rows:
            yield {**row, "task_id": self._tasks[row["task_id"]]} if "task_id" in row else row

    def _read(self, table: Table, condition: ColumnElement[bool]) -> Sequence[Row]:
        """Return rows as they are stored, oldest first if they have a creation time."""
        (key,) = table.primary_key.columns
        order: Any = (table.c.created_at, key) if "created_at" in table.c else (key,)
        rows = self.source.execute(reading(table).where(condition).order_by(*order)).mappings()
        return [dict(row) for row in rows]

    def _write(self, table: Table, rows: Sequence[Row], *, known: bool = False) -> None:
        for start in range(0, len(rows), _AT_ONCE):
            write(self.target, table, rows[start : start + _AT_ONCE], known=known)
        self.rows[table.name] += len(rows)
