"""The contract of an export: recorded rollouts in another project's form, one after the other and never all in memory.

    export(store, rollout_ids, "parquet", Path("rows.parquet"))

A member of `exports/` is one format. What a format has no place for is left out, and its docstring says so.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from sqlalchemy import select

from harnessgym.errors import ConfigError, TraceError
from harnessgym.registry import load
from harnessgym.store import TraceStore, calls, sessions
from harnessgym.store.calls import Segment
from harnessgym.store.tables import advantages, policy_versions, trained
from harnessgym.tokens import TokenIds
from harnessgym.traces.answers import Languages
from harnessgym.traces.facts import RolloutFacts, group_rewards_of, rollout_of
from harnessgym.traces.graph import Graph, graph
from harnessgym.traces.trajectories import Trajectory, rows_of
from harnessgym.traces.transcript import Transcript, transcript


@dataclass
class TracedRollout:
    """One rollout; each view of it is read when it is first asked for."""

    store: TraceStore
    id: str
    languages: Languages

    @cached_property
    def facts(self) -> RolloutFacts:
        """The rollout itself."""
        return self.store.read(lambda conn: rollout_of(conn, self.id))

    @cached_property
    def graph(self) -> Graph:
        """Its agents, events, edges and rewards."""
        return self.store.read(lambda conn: graph(conn, self.id))

    @cached_property
    def transcript(self) -> Transcript:
        """What was said."""
        return self.store.read(lambda conn: transcript(conn, self.id, self.languages))

    @cached_property
    def trajectory(self) -> Trajectory:
        """Its training rows."""
        return self.store.read(lambda conn: rows_of(conn, self.id, group_id=self.facts.group_id))

    @cached_property
    def segments(self) -> dict[str, Segment]:
        """Its tokens, by segment."""
        return self.store.read(lambda conn: calls.segments_of(conn, sessions.of_rollout(conn, self.id)))

    def path(self, segment_id: str) -> list[int]:
        """All tokens from the root through a segment."""
        parts, at = list[TokenIds](), self.segments.get(segment_id)
        while at is not None:
            parts.append(at.ids)
            at = self.segments.get(at.parent_id or "")
        return [token for ids in reversed(parts) for token in ids]

    @property
    def several(self) -> bool:
        """Whether calls of it are another policy's than the rollout's."""
        return any(call.policy_id not in (None, self.facts.policy_id) for call in self.graph.calls.values())

    @cached_property
    def reward(self) -> float | None:
        """What it was trained on: the channel `reward` of the rollout."""
        found = (item.value for item in self.graph.rewards if item.unit == "rollout" and item.channel == "reward")
        return next(found, None)

    @cached_property
    def group_rewards(self) -> list[float]:
        """`reward` of every rollout of its group that has one."""
        return self.store.read(lambda conn: group_rewards_of(conn, self.facts.group_id))

    @cached_property
    def advantages(self) -> dict[str, list[tuple[int, int, float]]]:
        """What its latest training that counts gave, each policy's: (start, end, value) within a segment, by segment."""
        made = (policy_versions.c.policy_id == trained.c.policy_id) & (policy_versions.c.version == trained.c.version)
        counts = (trained.c.rollout_id == self.id, ~policy_versions.c.orphaned)
        steps = select(trained.c.policy_id, trained.c.id).join(policy_versions, made).where(*counts)
        found = self.store.read(lambda conn: conn.execute(steps.order_by(trained.c.step, trained.c.id)).all())
        latest = {row.policy_id: row.id for row in found}
        columns = [advantages.c[name] for name in ("segment_id", "start", "end", "value")]
        query = select(*columns).where(advantages.c.trained_id.in_(latest.values()))
        out: dict[str, list[tuple[int, int, float]]] = {}
        for row in self.store.read(lambda conn: conn.execute(query.order_by(advantages.c.start)).all()):
            out.setdefault(row.segment_id, []).append((row.start, row.end, row.value))
        return out


class Export(Protocol):
    """One format."""

    def write(self, rollouts: Iterable[TracedRollout], out: Path) -> int:
        """Write rollouts as they come; how many records that made. Raises `ConfigError` for a path it cannot use."""
        ...


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote."""

    path: Path
    rollouts: int
    records: int
    """Lines, rows or documents, as the format has them."""


def export(
    store: TraceStore, rollout_ids: Iterable[str], format: str, out: Path, languages: Languages | None = None  # noqa: A002
) -> Exported:  # fmt: skip
    """Write rollouts in a format: a registered name or `module:Class`. What stood at `out` is replaced when all is written.

    Raises `ConfigError` for an unknown format, `StoreError` for an unknown rollout, `TraceError` for one that cannot be
    written, or that several policies sampled, which no format tells apart. Then nothing is left at `out` that was not there
    before.
    """
    member: Export = load("export", format)()
    known, counted = languages or Languages(), _Counted()
    records = member.write(counted.of(TracedRollout(store, name, known) for name in rollout_ids), out)
    return Exported(out, counted.number, records)


@dataclass
class _Counted:
    """Counts what passes."""

    number: int = 0

    def of(self, rollouts: Iterator[TracedRollout]) -> Iterator[TracedRollout]:
        """The same rollouts."""
        for rollout in rollouts:
            if rollout.several:
                raise TraceError(
                    f"Rollout {rollout.id} was sampled by several policies, and an export does not tell whose a call is. "
                    "`harnessgym traces sql` does: column `policy` of `v_turn`."
                )
            self.number += 1
            yield rollout


def needed(module: str, format: str) -> ConfigError:  # noqa: A002
    """What to say when a format needs a package that is not installed."""
    return ConfigError(f"The format {format!r} needs {module}, which is not installed: pip install 'harnessgym-rl[export]'.")
