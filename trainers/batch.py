"""A training batch: complete groups from the store, as rows with advantages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from harnessgym.staleness import VersionChain
from harnessgym.store import TraceStore
from harnessgym.store.advantages import AdvantageRange
from harnessgym.store.ledger import ExcludedTokens, TrainedRollout
from harnessgym.store.rollouts import GroupRow
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Row, Trajectory, rows_of

Estimator = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""Rewards of one group, float [G], to its advantages, float64 [G]."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with one advantage each, and what the ledger will say of all that the step consumes."""

    group_ids: tuple[str, ...]
    rows: tuple[Row, ...]
    """Of groups with a signal; the others have no gradient."""
    advantages: tuple[float, ...]
    rewards: tuple[float, ...]
    """One per rollout."""
    staleness: int
    """Oldest token's."""
    signal: float
    """Share of groups whose rewards differ."""
    reduced: int
    """Groups of which not every rollout was graded."""
    trained: tuple[TrainedRollout, ...]
    excluded: tuple[ExcludedTokens, ...]


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """A group with its rows read."""

    group: GroupRow
    rows: tuple[tuple[Row, ...], ...]
    """Per member."""
    excluded: tuple[ExcludedTokens, ...]

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """One per member, float64 [G]."""
        return np.array([member.reward for member in self.group.members], dtype=np.float64)

    @property
    def signal(self) -> bool:
        """Whether its rewards differ: equal ones teach nothing."""
        return bool(self.rewards.std() > 0)

    def staleness(self, version: int, chain: VersionChain) -> int:
        """Of its oldest token, if trained in a step from `version`."""
        return chain.oldest(version, (row.versions for rows in self.rows for row in rows))


@dataclass(frozen=True, slots=True)
class Share:
    """What one group brings to a batch."""

    group: LoadedGroup
    rewards: tuple[float, ...]
    signal: bool
    rows: tuple[Row, ...]
    """None without a signal."""
    advantages: tuple[float, ...]
    """One per row."""
    trained: tuple[TrainedRollout, ...]


def load_group(store: TraceStore, group: GroupRow) -> LoadedGroup:
    """Read a complete group's rows."""
    found = [store.read(partial(rows_of, rollout_id=member.rollout_id, group_id=group.id)) for member in group.members]
    return loaded(group, found)


def loaded(group: GroupRow, found: Sequence[Trajectory]) -> LoadedGroup:
    """A group with what was read of its members, in their order."""
    excluded = [
        ExcludedTokens(member.rollout_id, item.call_id, item.start, item.end, item.reason)
        for member, trajectory in zip(group.members, found, strict=True)
        for item in trajectory.exclusions
    ]
    return LoadedGroup(group, tuple(trajectory.rows for trajectory in found), tuple(excluded))


def make_batch(
    groups: Sequence[LoadedGroup],
    version: int,
    chain: VersionChain,
    estimator: Estimator,
    shuffle: np.random.Generator | None,
) -> Batch:
    """Join groups for a step from `version`.

    `shuffle` permutes the rewards over all rollouts first: the control in which nothing can be learnt.
    """
    rewards = np.concatenate([item.rewards for item in groups])
    if shuffle is not None:
        rewards = shuffle.permutation(rewards)
    ends = np.cumsum([len(item.group.members) for item in groups])[:-1]
    parts = zip(groups, np.split(rewards, ends), strict=True)
    return join([share_of(item, own, version, chain, estimator) for item, own in parts])


def share_of(
    group: LoadedGroup, rewards: npt.NDArray[np.float64], version: int, chain: VersionChain, estimator: Estimator
) -> Share:
    """A group's part in a step from `version`, with these rewards, float64 [G].

    If they are all equal it teaches nothing: its rows are left out of the step and of its means (as in DAPO, arXiv 2503.14476),
    and the ledger counts them as trained with advantage zero.
    """
    teaches = bool(rewards.std() > 0)
    rows: list[Row] = []
    advantages: list[float] = []
    trained: list[TrainedRollout] = []
    for member, member_rows, advantage in zip(group.group.members, group.rows, estimator(rewards), strict=True):
        tokens = sum(int(row.mask.sum()) for row in member_rows)
        oldest = chain.oldest(version, (row.versions for row in member_rows))
        value = float(advantage) if teaches else 0.0
        trained.append(TrainedRollout(member.rollout_id, tokens, oldest, ranges_of(member_rows, value)))
        if teaches:
            rows.extend(member_rows)
            advantages.extend([value] * len(member_rows))
    return Share(group, tuple(map(float, rewards)), teaches, tuple(rows), tuple(advantages), tuple(trained))


def join(shares: Sequence[Share]) -> Batch:
    """The batch that these groups make up, in their order."""
    trained = tuple(entry for share in shares for entry in share.trained)
    return Batch(
        group_ids=tuple(share.group.group.id for share in shares),
        rows=tuple(row for share in shares for row in share.rows),
        advantages=tuple(value for share in shares for value in share.advantages),
        rewards=tuple(value for share in shares for value in share.rewards),
        staleness=max((entry.max_staleness for entry in trained), default=0),
        signal=sum(share.signal for share in shares) / len(shares),
        reduced=sum(len(share.rewards) < share.group.group.size for share in shares),
        trained=trained,
        excluded=tuple(entry for share in shares for entry in share.group.excluded),
    )


def ranges_of(rows: Sequence[Row], advantage: float | FloatArray) -> tuple[AdvantageRange, ...]:
    """The advantage of every trained token of some rows, call by call: one number, or float [T] for a single row of length T.

    Each range is as long as neighbouring tokens of a call have the same value.
    """
    out = []
    for row in rows:
        values = np.broadcast_to(np.asarray(advantage, dtype=np.float64), row.ids.shape)
        changes = (np.diff(row.mask) != 0) | (np.diff(values) != 0)
        for turn in row.turns:
            edges = (np.flatnonzero(changes[turn.start : turn.end - 1]) + turn.start + 1).tolist()
            for start, end in pairwise([turn.start, *edges, turn.end]):
                if row.mask[start]:
                    out.append(AdvantageRange(turn.call_id, start - turn.start, end - turn.start, float(values[start])))
    return tuple(out)
