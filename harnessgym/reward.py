"""The contract of a reward: from the record of a finished rollout to numbers for what was done in it.

Members live in `rewards/`; a run names them in its configuration, after the task's grader:

```toml
[[rewards]]
type = "orchestration"

[[rewards]]
name = "lint"
type = "command"
settings = { argv = ["ruff", "check", "."], channel = "process.lint" }
```

Only the grader's channel `reward` is trained on. Channels are named in `harnessgym.store.rewards`.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel

from harnessgym.config import validate
from harnessgym.errors import ConfigError, HarnessGymError, RewardError
from harnessgym.proxy_client import ControlClient
from harnessgym.registry import load
from harnessgym.run_config.run import RewardSection
from harnessgym.sandbox import Sandbox
from harnessgym.store import TraceStore, rewards
from harnessgym.store.rewards import RewardRow, RewardUnit
from harnessgym.task import Task
from harnessgym.traces.facts import rollout_of, run_config_of
from harnessgym.traces.graph import Graph, graph
from harnessgym.traces.transcript import Transcript, transcript

Need = Literal["sandbox", "task", "proxy"]
"""What a reward cannot do without: the sandbox with the workspace that the harness left, the task, a
running proxy."""


@dataclass(frozen=True, slots=True)
class Score:
    """A number for one unit under one channel."""

    unit: RewardUnit
    target: str
    """See `harnessgym.store.rewards`; empty is the rollout itself."""
    channel: str
    value: float
    detail: str | None = None


@dataclass(frozen=True)
class RewardContext:
    """What a reward may look at."""

    store: TraceStore
    rollout_id: str
    task: Task | None = None
    sandbox: Sandbox | None = None
    """Its workspace is what the harness left; everything the harness had started is dead."""
    control: ControlClient | None = None
    """Of the proxy that the rollout used."""

    @cached_property
    def graph(self) -> Graph:
        """Agents, calls, events and edges."""
        return self.store.read(lambda conn: graph(conn, self.rollout_id))

    @cached_property
    def transcript(self) -> Transcript:
        """What was said."""
        return self.store.read(lambda conn: transcript(conn, self.rollout_id))

    @property
    def workspace(self) -> Path | None:
        """The workspace on this machine. What lies in it was written by the harness: never follow its
        links.
        """
        return None if self.sandbox is None else self.sandbox.workspace

    @property
    def offers(self) -> frozenset[Need]:
        """What is there."""
        there: dict[Need, object] = {"sandbox": self.sandbox, "task": self.task, "proxy": self.control}
        return frozenset(name for name, what in there.items() if what is not None)


class Reward(Protocol):
    """Scores rollouts. Made from its settings once, asked for many rollouts, several at a time."""

    needs: frozenset[Need]

    @property
    def settings(self) -> type[BaseModel]:
        """What its constructor takes."""
        ...

    async def score(self, record: RewardContext) -> Sequence[Score]:
        """The scores of a rollout. Raises `HarnessGymError` when there can be none: such a rollout has no
        result.
        """
        ...


def make_rewards(sections: Sequence[RewardSection]) -> dict[str, Reward]:
    """The rewards of a run by name, in order. Raises `ConfigError` for wrong settings, or a name given
    twice.
    """
    out: dict[str, Reward] = {}
    for section in sections:
        name = section.name or section.type
        if name in out:
            raise ConfigError(f"Two rewards are named {name!r}. Give one of them another `name`.")
        factory = load("reward", section.type)
        out[name] = factory(validate(factory.settings, section.settings, f"reward {name!r}"))
    return out


async def score_all(
    members: Mapping[str, Reward], record: RewardContext, taken: Iterable[str] = ()
) -> tuple[RewardRow, ...]:
    """What all rewards say of a rollout, as rows that can be written. `taken` are channels that the rollout
    has values for.

    Raises `RewardError` naming the reward that failed, or that contradicts an earlier one.
    """
    rows: dict[tuple[str, str, str], RewardRow] = {}
    given = {("rollout", record.rollout_id, channel): "the grader" for channel in taken}
    for name, reward in members.items():
        missing = reward.needs - record.offers
        if missing:
            raise RewardError(
                f"The reward {name!r} needs a {' and a '.join(sorted(missing))}, which is not there."
            )
        try:
            for item in await reward.score(record):
                row = _row(record, name, item)
                key = (row.unit, row.target, row.channel)
                if key in given:
                    raise RewardError(f"{row} is given by {given[key]} already. Set another `channel`.")
                await record.store.aread(partial(rewards.check, reward=row))
                rows[key], given[key] = row, f"the reward {name!r}"
        except HarnessGymError as error:
            raise RewardError(
                f"The reward {name!r} of rollout {record.rollout_id} failed. {error}"
            ) from error
    return tuple(rows.values())


def _row(record: RewardContext, name: str, score: Score) -> RewardRow:
    target = score.target or record.rollout_id
    return RewardRow(record.rollout_id, score.unit, target, score.channel, score.value, name, score.detail)


@dataclass(frozen=True, slots=True)
class Rescored:
    """A reward computed again."""

    row: RewardRow
    stored: float | None
    """What the store has; None if it has nothing."""

    @property
    def same(self) -> bool:
        """Whether the store has this value."""
        return self.stored == self.row.value


def rescore(store: TraceStore, rollout_id: str) -> list[Rescored]:
    """Compute again those rewards of a rollout's run that need neither a sandbox nor a proxy. Nothing is
    written.

    None of a rollout that was not rewarded: it has not finished, or its verdict is not `valid`.
    """
    record = RewardContext(store, rollout_id)
    found = store.read(lambda conn: rollout_of(conn, rollout_id))
    if (found.status, found.verdict) != ("finished", "valid"):
        return []
    config = store.read(lambda conn: run_config_of(conn, found.run_id))
    sections = [validate(RewardSection, raw, f"run {found.run_id}") for raw in config.get("rewards") or ()]
    members = {name: reward for name, reward in make_rewards(sections).items() if not reward.needs}
    rows = asyncio.run(score_all(members, record))
    stored = {(item.unit, item.target, item.channel): item.value for item in record.graph.rewards}
    return [Rescored(row, stored.get((row.unit, row.target, row.channel))) for row in rows]
