"""The contract of a reward, which scores the record of a finished rollout.

Members live in `rewards/`; a run names them in its configuration, after the task's grader:

```toml
[[rewards]]
type = "orchestration"

[[rewards]]
name = "lint"
type = "command"
settings = { argv = ["ruff", "check", "."], channel = "process.lint" }
```

Training uses the grader's channel `reward`. If any reward has a `weight`, it uses the weighted sum instead,
stored under the channel `total`:

```toml
[[rewards]]
name = "short"
type = "sql"
weight = -0.001                           # total = reward - 0.001 cost.sampled
[rewards.settings]
query = "SELECT sum(completion_len) FROM calls WHERE rollout_id = :rollout_id"
channel = "cost.sampled"
```

Channels are named in `harnessgym.store.rewards`.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel

from harnessgym.config import nearest, validate
from harnessgym.errors import ConfigError, HarnessGymError, RewardError, StoreUnavailable
from harnessgym.proxy_client import ControlClient
from harnessgym.registry import load
from harnessgym.run_config.run import RewardSection, RunConfig
from harnessgym.sandbox import Sandbox
from harnessgym.store import TraceStore, rewards
from harnessgym.store.facts import rollout_of, run_config_of
from harnessgym.store.rewards import TOTAL, RewardRow, RewardUnit
from harnessgym.task import Task
from harnessgym.traces.graph import Graph, graph
from harnessgym.traces.transcript import Transcript, transcript

Need = Literal["sandbox", "task", "proxy"]
"""What a reward may require: the sandbox with the workspace as the harness left it, the task, or a running
proxy."""
GIVEN = {"reward": "the grader's", TOTAL: "the weighted sum of a run's rewards"}
"""Channels that no reward of a run may use."""
_TABLE = 'weight = { "CHANNEL" = 1.0 }'


@dataclass(frozen=True, slots=True)
class Score:
    """A score of one unit on one channel."""

    unit: RewardUnit
    target: str
    """See `harnessgym.store.rewards`. Empty means the rollout itself."""
    channel: str
    value: float
    detail: str | None = None


@dataclass(frozen=True)
class RewardContext:
    """What a reward can read."""

    store: TraceStore
    rollout_id: str
    task: Task | None = None
    sandbox: Sandbox | None = None
    """Its workspace is as the harness left it. Every process the harness started is dead."""
    control: ControlClient | None = None
    """Control client of the proxy that the rollout used."""

    @cached_property
    def graph(self) -> Graph:
        """Agents, calls, events and edges."""
        return self.store.read(lambda conn: graph(conn, self.rollout_id))

    @cached_property
    def transcript(self) -> Transcript:
        """The messages of the rollout."""
        return self.store.read(lambda conn: transcript(conn, self.rollout_id))

    @property
    def workspace(self) -> Path | None:
        """The workspace on this machine. The harness wrote its content, so never follow links in it."""
        return None if self.sandbox is None else self.sandbox.workspace

    @property
    def offers(self) -> frozenset[Need]:
        """The needs that this context can meet."""
        there: dict[Need, object] = {"sandbox": self.sandbox, "task": self.task, "proxy": self.control}
        return frozenset(name for name, what in there.items() if what is not None)


class Reward(Protocol):
    """Scores rollouts. Constructed once from its settings, then used for many rollouts concurrently.

    It may have an attribute `channels`: the channels it scores rollouts on, if its settings do not name one.
    """

    needs: frozenset[Need]

    @property
    def settings(self) -> type[BaseModel]:
        """Class of the settings that its constructor takes."""
        ...

    async def score(self, record: RewardContext) -> Sequence[Score]:
        """The scores of a rollout. Raises `HarnessGymError` if it cannot score; the rollout has no result."""
        ...


def make_rewards(sections: Sequence[RewardSection]) -> dict[str, Reward]:
    """The rewards of a run by name, in order.

    Raises `ConfigError` for wrong settings, a duplicate name, and an invalid channel or weight.
    """
    out: dict[str, Reward] = {}
    weighed: dict[str, str] = {}
    for section in sections:
        name = section.name or section.type
        if name in out:
            raise ConfigError(f"Two rewards are named {name!r}. Give one of them another `name`.")
        factory = load("reward", section.type)
        settings = validate(factory.settings, section.settings, f"reward {name!r}")
        out[name] = factory(settings)
        known = _channels(out[name], settings)
        _check_channels(name, section, known)
        for channel in (
            (section.weight if isinstance(section.weight, dict) else known) if section.weighs else ()
        ):
            if channel in weighed:
                raise ConfigError(
                    f"The rewards {weighed[channel]!r} and {name!r} both give a rollout the channel "
                    f"{channel!r}. Set another `channel` in the settings of one."
                )
            weighed[channel] = name
    return out


def _channels(reward: Reward, settings: BaseModel) -> tuple[str, ...]:
    """The channels that a reward declares; empty if it declares none."""
    own: str | None = getattr(settings, "channel", None)
    return getattr(reward, "channels", ()) or (() if own is None else (own,))


def _check_channels(name: str, section: RewardSection, known: Sequence[str]) -> None:
    """Raises `ConfigError` for a reserved channel, and for a weight with no channel or an unknown one."""
    for channel in known:
        if channel in GIVEN:
            raise ConfigError(
                f"The reward {name!r} has the channel {channel!r}, which is {GIVEN[channel]}. Set another "
                "`channel`, and a `weight` for it to be trained on."
            )
    if isinstance(section.weight, dict):
        unknown = [channel for channel in section.weight if channel not in known]
        if len(known) > 1 and unknown:
            raise ConfigError(
                f"The reward {name!r} gives no channel {unknown[0]!r}. {nearest(unknown[0], list(known))}"
            )
    elif section.weighs and len(known) > 1:
        raise ConfigError(
            f"The reward {name!r} gives a rollout several channels, so its weight must say which: weight = "
            f'{{ "{known[0]}" = {section.weight:g} }}. Known: {", ".join(known)}.'
        )


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """The trained reward: a weighted sum of the grader's reward and the run's own rewards."""

    graded: float = 1.0
    rewards: Mapping[str, float | Mapping[str, float]] = field(default_factory=dict)
    """By the name of each reward that counts: the weight of its only channel, or weights by channel."""

    def total(self, rollout_id: str, graded: float, scores: Sequence[RewardRow]) -> RewardRow:
        """The weighted sum. Raises `RewardError` if a score is missing, because a missing reward is not 0."""
        parts = [("reward", self.graded, graded)]
        for name, weight in self.rewards.items():
            own = {row.channel: row.value for row in scores if row.source == name and row.unit == "rollout"}
            parts += [
                (channel, each, own[channel]) for channel, each in _by_channel(name, weight, own).items()
            ]
        detail = _sum([(weight, f"{channel} ({value:g})") for channel, weight, value in parts])
        value = math.fsum(weight * value for _, weight, value in parts)
        return RewardRow(rollout_id, "rollout", rollout_id, TOTAL, value, "weights", detail)

    def tampered(self, rollout_id: str) -> RewardRow:
        """The reward of a tampered rollout: 0, or its group's least reward if that is less."""
        # Penalties may bring honest sums below 0, and tampering must not pay: whoever reads a group lowers
        # this to the group's least sum.
        return RewardRow(
            rollout_id, "rollout", rollout_id, TOTAL, 0.0, "weights", "The workspace was tampered with."
        )

    @property
    def formula(self) -> str:
        """The sum as text."""
        parts = [(self.graded, "reward")]
        for name, weight in self.rewards.items():
            parts += (
                [(each, channel) for channel, each in weight.items()]
                if isinstance(weight, Mapping)
                else [(weight, name)]
            )
        return _sum(parts)


def _by_channel(
    name: str, weight: float | Mapping[str, float], weights: Mapping[str, float]
) -> Mapping[str, float]:
    """A reward's weights by channel. Raises `RewardError` if a weighted channel has no score."""
    if not isinstance(weight, Mapping):
        if len(weights) == 1:
            return dict.fromkeys(weights, weight)
        what = f"it gave the channels {', '.join(weights)}" if weights else "it gave the rollout no score"
        raise RewardError(f"The reward {name!r} has one weight, and {what}. Name the channel: {_TABLE}.")
    if missing := [channel for channel in weight if channel not in weights]:
        raise RewardError(
            f"The reward {name!r} has a weight for the channel {missing[0]!r} and gave the rollout no "
            f"score there (but: {', '.join(weights) or 'none'}). A missing reward is not 0: correct the "
            "name, or give 0 where none is earned."
        )
    return weight


def _sum(parts: Sequence[tuple[float, str]]) -> str:
    """A weighted sum as text: `1 * reward - 0.01 * short`."""
    terms = "".join(f" {'-' if weight < 0 else '+'} {abs(weight):g} * {name}" for weight, name in parts)
    return terms.removeprefix(" + ").removeprefix(" ")


def weights_of(config: RunConfig) -> RewardWeights | None:
    """The weights of a run; None if it trains on the grader's reward alone."""
    if not config.weighed:
        return None
    counting = {section.name or section.type: section.weight for section in config.rewards if section.weighs}
    return RewardWeights(config.tasks.weight, counting)


async def score_all(
    members: Mapping[str, Reward], record: RewardContext, taken: Iterable[str] = ()
) -> tuple[RewardRow, ...]:
    """The scores of all rewards as rows for the store. `taken` holds channels that already have values.

    Raises `RewardError` naming the reward that failed, or that scored something already scored.
    """
    rows: dict[tuple[str, str, str], RewardRow] = {}
    scorers = {("rollout", record.rollout_id, channel): "the grader" for channel in taken}
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
                if key in scorers:
                    raise RewardError(f"{row} was given by {scorers[key]} already. Set another `channel`.")
                await record.store.aread(partial(rewards.check, reward=row))
                rows[key], scorers[key] = row, f"the reward {name!r}"
        except StoreUnavailable:  # the database's fault, not the reward's
            raise
        except Exception as error:  # somebody else's code: its bug must not be a reward, nor end the node
            what = str(error) if isinstance(error, HarnessGymError) else f"{type(error).__name__}: {error}"
            raise RewardError(f"The reward {name!r} failed. {what}") from error
    return tuple(rows.values())


def _row(record: RewardContext, name: str, score: Score) -> RewardRow:
    target = score.target or record.rollout_id
    return RewardRow(record.rollout_id, score.unit, target, score.channel, score.value, name, score.detail)


@dataclass(frozen=True, slots=True)
class Rescored:
    """A reward that was recomputed."""

    row: RewardRow
    stored: float | None
    """The stored value, or None."""

    @property
    def same(self) -> bool:
        """Whether the stored value is equal."""
        return self.stored == self.row.value


def rescore(store: TraceStore, rollout_id: str) -> list[Rescored]:
    """Recompute the rewards of a rollout that need no sandbox, task or proxy. Writes nothing.

    Empty for a rollout without rewards: one that has not finished or whose verdict is not `valid`.
    """
    record = RewardContext(store, rollout_id)
    rollout = store.read(lambda conn: rollout_of(conn, rollout_id))
    if (rollout.status, rollout.verdict) != ("finished", "valid"):
        return []
    config = store.read(lambda conn: run_config_of(conn, rollout.run_id))
    sections = [validate(RewardSection, raw, f"run {rollout.run_id}") for raw in config.get("rewards") or ()]
    members = {name: reward for name, reward in make_rewards(sections).items() if not reward.needs}
    rows = asyncio.run(score_all(members, record))
    stored = {(item.unit, item.target, item.channel): item.value for item in record.graph.rewards}
    return [Rescored(row, stored.get((row.unit, row.target, row.channel))) for row in rows]
