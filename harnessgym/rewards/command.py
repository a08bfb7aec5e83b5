"""Rewards by a command or by a query.

A command runs in the rollout's sandbox. Its last non-empty line counts: a number, an object `{"value": 0.5,
"detail": "why"}`, or a list of such objects, which may also have `unit`, `target` and `channel`. Its exit
status must be 0.

A query runs over the trace database, or over a SQLite file in the workspace. `:rollout_id` is the rollout's
id. A row's first column is the value, unless the columns are named `value`, `unit`, `target`, `channel` and
`detail`:

```toml
[[rewards]]
type = "sql"
[rewards.settings]
query = "SELECT -count(*) FROM calls WHERE rollout_id = :rollout_id"
channel = "cost.calls_negated"
```
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread
from pydantic import Field

from harnessgym.config import Config, validate
from harnessgym.errors import RewardError
from harnessgym.reward import Need, RewardContext, Score
from harnessgym.store.plain_sql import Row, select_file_rows, select_rows
from harnessgym.store.rewards import RewardUnit

_TAIL = 500


class CommandRewardSettings(Config):
    """The command to run."""

    argv: tuple[str, ...] = Field(min_length=1)
    files: Mapping[str, str] = Field(default_factory=dict)
    """Relative path to text. The files are written to the workspace first, over any that the harness left."""
    channel: str = "task"
    timeout_s: float = Field(60.0, gt=0)


class CommandScore(Config):
    """One score as JSON."""

    value: float
    unit: RewardUnit = "rollout"
    target: str = ""
    channel: str = ""
    detail: str | None = None


class CommandReward:
    """Runs the command."""

    settings = CommandRewardSettings
    needs: frozenset[Need] = frozenset({"sandbox"})

    def __init__(self, settings: CommandRewardSettings) -> None:
        self._settings = settings

    async def score(self, record: RewardContext) -> Sequence[Score]:
        """The printed scores. Raises `RewardError` if the command fails or prints no score."""
        assert record.sandbox is not None
        # Written after the harness ended, so it cannot replace the reward's own files.
        for path, text in self._settings.files.items():
            await record.sandbox.write(path, text.encode())
        result = await record.sandbox.exec(self._settings.argv, timeout_s=self._settings.timeout_s)
        if not result.ok:
            raise RewardError(f"`{' '.join(self._settings.argv)}` failed: {result.describe(_TAIL)}")
        return scores_of(result.stdout.decode(errors="replace"), self._settings.channel)


def scores_of(output: str, channel: str) -> list[Score]:
    """The scores on the last line of a text. Raises `RewardError` if there are none."""
    lines = [line for line in output.splitlines() if line.strip()]
    try:
        payload: Any = json.loads(lines[-1])
    except (LookupError, ValueError, RecursionError):
        raise RewardError(
            f"The last line of its output is no number and no JSON: {output[-_TAIL:]!r}"
        ) from None
    entries = payload if isinstance(payload, list) else [payload]
    plain = [{"value": item} if isinstance(item, int | float) else item for item in entries]
    if not plain or not all(isinstance(item, dict) for item in plain):
        raise RewardError(f"Its output is no number, object or list of objects: {lines[-1][:_TAIL]}")
    made = [validate(CommandScore, item, "what a reward printed") for item in plain]
    return [Score(item.unit, item.target, item.channel or channel, item.value, item.detail) for item in made]


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
            return select_file_rows(path, query, parameters, self._settings.timeout_s)
        return record.store.read(lambda conn: select_rows(conn, query, parameters))

    def _score(self, row: Row) -> Score:
        named = row if "value" in row else {"value": next(iter(row.values()), None)}
        if named["value"] is None:
            raise RewardError(
                f"The query gives no number but {row}. Use COALESCE for a value where there is none."
            )
        score = validate(
            CommandScore,
            {name: value for name, value in named.items() if value is not None},
            "a row of the query",
        )
        return Score(
            score.unit, score.target, score.channel or self._settings.channel, score.value, score.detail
        )


def _inside(workspace: Path, name: str) -> Path:
    """A regular file in the workspace. Raises `RewardError` if there is none."""
    root = workspace.resolve()
    # Resolving must not change the path: a link that the agent left could point at any file of the machine.
    path = root / name
    if path.resolve() != path or not path.is_relative_to(root) or not path.is_file():
        raise RewardError(f"The workspace has no regular file {name!r}.")
    return path
