"""A query as a reward, over the trace database or over a SQLite file in the workspace.

`:rollout_id` is the rollout's id. A row's first column is the value, unless the columns are named `value`,
`unit`, `target`, `channel` and `detail`:

```toml
[[rewards]]
type = "sql"
settings = { query = "SELECT -count(*) FROM calls WHERE rollout_id = :rollout_id", channel = "cost.calls_negated" }
```
"""

from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread

from harnessgym.config import Config, validate
from harnessgym.errors import RewardError
from harnessgym.reward import Need, RewardContext, Score
from harnessgym.rewards.command import CommandScore
from harnessgym.store.question import Row, ask, ask_file


class SqlSettings(Config):
    """The query and its database."""

    query: str
    """One read-only statement."""
    database: str = ""
    """Path of a SQLite file in the workspace; empty means the trace database."""
    channel: str = "task"
    timeout_s: float = 10.0
    """Time limit of a query over a file in the workspace."""


class Sql:
    """Runs the query."""

    settings = SqlSettings

    def __init__(self, settings: SqlSettings) -> None:
        self._settings = settings
        self.needs: frozenset[Need] = frozenset({"sandbox"}) if settings.database else frozenset()

    async def score(self, record: RewardContext) -> Sequence[Score]:
        """One score per row. Raises `StoreError` if the query fails, `RewardError` for an invalid row."""
        rows = await anyio.to_thread.run_sync(self._rows, record)
        return [self._score(row) for row in rows]

    def _rows(self, record: RewardContext) -> list[Row]:
        query = self._settings.query
        parameters = {"rollout_id": record.rollout_id}
        if record.workspace is not None and self._settings.database:
            path = _inside(record.workspace, self._settings.database)
            return ask_file(path, query, parameters, self._settings.timeout_s)
        return record.store.read(lambda conn: ask(conn, query, parameters))

    def _score(self, row: Row) -> Score:
        named = row if "value" in row else {"value": next(iter(row.values()), None)}
        if named["value"] is None:
            raise RewardError(f"The query gives no number but {row}. COALESCE says what is meant by none.")
        said = validate(
            CommandScore,
            {name: value for name, value in named.items() if value is not None},
            "a row of the query",
        )
        return Score(said.unit, said.target, said.channel or self._settings.channel, said.value, said.detail)


def _inside(workspace: Path, name: str) -> Path:
    """A regular file in the workspace. Raises `RewardError` if there is none."""
    root = workspace.resolve()
    # Resolving must not change the path: a link that the agent left could point at any file of the machine.
    path = root / name
    if path.resolve() != path or not path.is_relative_to(root) or not path.is_file():
        raise RewardError(f"The workspace has no regular file {name!r}.")
    return path
