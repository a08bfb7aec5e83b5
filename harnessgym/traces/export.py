"""The contract of an export: writes recorded rollouts in another project's format, one at a time.

    export(store, rollout_ids, "parquet", Path("rows.parquet"))

Each member of `exports/` is one format. What a format has no place for is left out; its docstring says what.

In a run with several policies, a row has the tokens of one policy. If a format's records do not name their
policy, the file is written for one policy only. Otherwise a trainer could train one model on tokens that
another one sampled.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from harnessgym.errors import ConfigError
from harnessgym.registry import load
from harnessgym.store import TraceStore, advantages, calls, ledger, policies, sessions
from harnessgym.store.calls import Segment
from harnessgym.store.facts import CallFacts, RolloutFacts, group_rewards_of, rollout_of
from harnessgym.store.rewards import TOTAL
from harnessgym.tokens import TokenIds
from harnessgym.traces.completions import Languages
from harnessgym.traces.graph import Graph, graph
from harnessgym.traces.trajectories import Trajectory, rows_of
from harnessgym.traces.transcript import Transcript, transcript

TellsPolicies = Literal["rows", "calls"]
"""How a format tells several policies apart. rows: every record names the policy of its tokens. calls: a
record is a whole rollout and names the policy of every call.
"""


@dataclass
class TracedRollout:
    """One rollout. Each view of it is read on first access."""

    store: TraceStore
    id: str
    languages: Languages
    sampled_by: str | None = None
    """Name of the policy whose tokens are wanted; None for all policies."""
    with_experts: bool = False
    """Whether training rows have their routed experts."""

    @cached_property
    def facts(self) -> RolloutFacts:
        """The rollout itself."""
        return self.store.read(lambda conn: rollout_of(conn, self.id))

    @cached_property
    def graph(self) -> Graph:
        """Its graph: agents, events, edges and rewards."""
        return self.store.read(lambda conn: graph(conn, self.id))

    @cached_property
    def transcript(self) -> Transcript:
        """Its messages, call by call."""
        return self.store.read(lambda conn: transcript(conn, self.id, self.languages))

    @cached_property
    def trajectory(self) -> Trajectory:
        """Its training rows, of the policy `sampled_by` if that is set."""
        trajectory = self.store.read(
            lambda conn: rows_of(conn, self.id, group_id=self.facts.group_id, with_experts=self.with_experts)
        )
        if self.sampled_by is None:
            return trajectory
        ids = [policy_id for policy_id, name in self.policies.items() if name == self.sampled_by]
        return trajectory.of_policy(ids[0] if ids else "")

    @cached_property
    def policies(self) -> dict[str, str]:
        """Names of its run's policies by id."""
        ids_by_name = self.store.read(lambda conn: policies.of_run(conn, self.facts.run_id))
        return {policy_id: name for name, policy_id in ids_by_name.items()}

    @cached_property
    def segments(self) -> dict[str, Segment]:
        """Its token segments by id."""
        return self.store.read(lambda conn: calls.segments_of(conn, sessions.of_rollout(conn, self.id)))

    def path(self, segment_id: str) -> list[int]:
        """Return all tokens from the root through a segment."""
        parts = list[TokenIds]()
        at = self.segments.get(segment_id)
        while at is not None:
            parts.append(at.ids)
            at = self.segments.get(at.parent_id or "")
        return [token for ids in reversed(parts) for token in ids]

    @cached_property
    def sampling(self) -> frozenset[str]:
        """Names of the policies that were called in it."""
        return frozenset(map(self.policy_of, self.graph.calls.values()))

    def policy_of(self, call: CallFacts) -> str:
        """Return the name of the policy that a call was sent to."""
        return self.policies[call.policy_id or self.facts.policy_id]

    @cached_property
    def reward(self) -> float | None:
        """The reward that it was trained on: `total`, or `reward` if the run does not weigh rewards."""
        return self._rewards.get(TOTAL, self._rewards.get("reward"))

    @cached_property
    def group_rewards(self) -> list[float]:
        """The same reward of every rollout of its group that has one."""
        channel = TOTAL if TOTAL in self._rewards else "reward"
        return self.store.read(lambda conn: group_rewards_of(conn, self.facts.group_id, channel))

    @cached_property
    def _rewards(self) -> dict[str, float]:
        """Rewards of the rollout itself by channel."""
        return {item.channel: item.value for item in self.graph.rewards if item.unit == "rollout"}

    @cached_property
    def trained_by(self) -> dict[str, str]:
        """Id of the latest ledger row by policy. Steps into orphaned versions do not count."""
        return self.store.read(lambda conn: ledger.latest_training(conn, self.id))

    @cached_property
    def advantages(self) -> dict[str, list[tuple[int, int, float]]]:
        """Advantages of each policy's latest training: (start, end, value) by segment id."""
        ranges = self.store.read(lambda conn: advantages.of_trainings(conn, list(self.trained_by.values())))
        out: dict[str, list[tuple[int, int, float]]] = {}
        for item in ranges:
            out.setdefault(item.segment_id, []).append((item.start, item.end, item.value))
        return out


class Export(Protocol):
    """One format.

    A format that tells several policies apart has a class attribute `tells_policies: TellsPolicies`. One that
    has a place for routed experts has `takes_experts = True`.
    """

    def write(self, rollouts: Iterable[TracedRollout], out: Path) -> int:
        """Write rollouts as they are read. Returns the number of records.

        Raises `ConfigError` for a path that the format cannot use.
        """
        ...


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    path: Path
    rollouts: int
    records: int
    """Number of lines, rows or documents, depending on the format."""


def export(
    store: TraceStore,
    rollout_ids: Iterable[str],
    format: str,  # noqa: A002
    out: Path,
    languages: Languages | None = None,
    sampled_by: str | None = None,
) -> Exported:
    """Write rollouts in a format: a registered name or `module:Class`. Replaces `out` once all is written.

    `sampled_by` names the policy whose tokens are written; a rollout without tokens of it has no record.
    Raises `ConfigError` for an unknown format, for a policy that the run does not have, and if the format
    needs `sampled_by` because several policies sampled. Raises `StoreError` for an unknown rollout and
    `TraceError` for one that cannot be written. After an error `out` is unchanged.
    """
    member: Export = load("export", format)()
    tells: TellsPolicies | None = getattr(member, "tells_policies", None)
    if sampled_by is not None and tells == "calls":
        raise ConfigError(
            f"The format {format!r} writes whole rollouts and names the policy of every call; leave "
            "`--sampled-by` out."
        )
    passing = _Passing(format, tells, sampled_by)
    known = languages or Languages()
    with_experts = getattr(member, "takes_experts", False)
    traced = (TracedRollout(store, name, known, sampled_by, with_experts) for name in rollout_ids)
    records = member.write(passing.of(traced), out)
    return Exported(out, passing.number, records)


@dataclass
class _Passing:
    """Counts the rollouts that pass, and raises if the format cannot tell their policies apart."""

    format: str
    tells: TellsPolicies | None
    sampled_by: str | None
    number: int = 0
    _met: dict[str, set[str]] = field(default_factory=dict)
    """Policies that sampled so far, by run. Policies of different runs may be the same model."""

    def of(self, rollouts: Iterator[TracedRollout]) -> Iterator[TracedRollout]:
        """Yield the same rollouts."""
        for rollout in rollouts:
            known = rollout.policies.values()
            if self.sampled_by is not None and self.sampled_by not in known:
                raise ConfigError(
                    f"The run of rollout {rollout.id} has no policy {self.sampled_by!r}. It has "
                    f"{_listed(known)}."
                )
            met = self._met.setdefault(rollout.facts.run_id, set())
            met |= rollout.sampling
            if len(met) > 1 and self.sampled_by is None and self.tells is None:
                raise ConfigError(
                    f"Several policies sampled these rollouts: {_listed(met)}. A record of the format "
                    f"{self.format!r} does not name its policy. Choose one with `--sampled-by NAME`, or use "
                    "`parquet`, which has a column `policy`."
                )
            self.number += 1
            yield rollout


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def needed(module: str, format: str) -> ConfigError:  # noqa: A002
    """Return the error for a format that needs a package that is not installed."""
    return ConfigError(
        f"The format {format!r} needs {module}, which is not installed: pip install 'harnessgym-rl[export]'."
    )
