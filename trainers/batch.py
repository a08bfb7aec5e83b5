"""A training batch: complete groups from the store, as rows with advantages."""

from collections import Counter
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
from trainers.high_entropy import kept_turns

Estimator = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
"""Rewards of one group, float [G], to its advantages, float64 [G]."""


@dataclass(frozen=True, slots=True)
class TakenGroup:
    """A group that a batch is made of."""

    id: str
    ordinal: int
    staleness: int
    """Its oldest token's."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with one advantage each, and what the ledger will say of all that the step consumes."""

    groups: tuple[TakenGroup, ...]
    rows: tuple[Row, ...]
    """Of groups with a signal; the others have no gradient."""
    advantages: tuple[float | FloatArray, ...]
    """Of each row: a number, or float [T]."""
    rewards: tuple[float, ...]
    """One per rollout of its own groups."""
    staleness: int
    """Oldest token's."""
    signal: float
    """Share of groups whose rewards differ."""
    reduced: int
    """Groups of which not every rollout was graded."""
    off_policy: float
    """Share of the trained tokens that another version sampled than the step starts from."""
    carried: int
    """Rollouts that more than one version sampled."""
    borrowed: int
    """Rollouts of other groups among them."""
    trained: tuple[TrainedRollout, ...]
    excluded: tuple[ExcludedTokens, ...]

    @property
    def group_ids(self) -> tuple[str, ...]:
        """Of all groups that the step consumes."""
        return tuple(item.id for item in self.groups)


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """A group with its rows read."""

    group: GroupRow
    rows: tuple[tuple[Row, ...], ...]
    """Per member."""
    excluded: tuple[ExcludedTokens, ...]
    borrowed: int = 0
    """Of the members, the last ones, those that are another group's (`trainers.success_pool`)."""

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
    """Of its own members."""
    signal: bool
    rows: tuple[Row, ...]
    """None without a signal."""
    advantages: tuple[float | FloatArray, ...]
    """Of each row: a number, or float [T]."""
    trained: tuple[TrainedRollout, ...]
    off_policy: int
    """Trained tokens that another version sampled than the step starts from."""
    carried: int
    """Rollouts that more than one version sampled."""

    @property
    def taken(self) -> TakenGroup:
        """The group, as the batch names it."""
        group = self.group.group
        return TakenGroup(group.id, group.ordinal, max((entry.max_staleness for entry in self.trained), default=0))


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
    steps_kept: float = 1.0,
) -> Batch:
    """Join groups for a step from `version`.

    `shuffle` permutes the rewards over all rollouts first: the control in which nothing can be learnt. `steps_kept` is
    `share_of`'s.
    """
    rewards = np.concatenate([item.rewards for item in groups])
    if shuffle is not None:
        rewards = shuffle.permutation(rewards)
    ends = np.cumsum([len(item.group.members) for item in groups])[:-1]
    parts = zip(groups, np.split(rewards, ends), strict=True)
    return join([share_of(item, own, version, chain, estimator, steps_kept) for item, own in parts])


def share_of(
    group: LoadedGroup,
    rewards: npt.NDArray[np.float64],
    version: int,
    chain: VersionChain,
    estimator: Estimator,
    steps_kept: float = 1.0,
) -> Share:
    """A group's part in a step from `version`, with these rewards, float64 [G].

    If they are all equal it teaches nothing: its rows are left out of the step and of its means (as in DAPO, arXiv 2503.14476),
    and the ledger counts them as trained with advantage zero. With `steps_kept` below 1 the other turns of the group have
    advantage zero too (`trainers.high_entropy`).
    """
    teaches = bool(rewards.std() > 0)
    rows: list[Row] = []
    advantages: list[float | FloatArray] = []
    trained: list[TrainedRollout] = []
    kept = iter(kept_turns([row for own in group.rows for row in own], steps_kept) if steps_kept < 1 else ())
    for member, member_rows, advantage in zip(group.group.members, group.rows, estimator(rewards), strict=True):
        tokens = sum(int(row.mask.sum()) for row in member_rows)
        oldest = chain.oldest(version, (row.versions for row in member_rows))
        value = float(advantage) if teaches else 0.0
        values: list[float | FloatArray] = [value] * len(member_rows)
        if teaches and steps_kept < 1:
            values = [np.float32(value) * next(kept) for _ in member_rows]
        ranges = tuple(item for row, own in zip(member_rows, values, strict=True) for item in ranges_of((row,), own))
        trained.append(TrainedRollout(member.rollout_id, tokens, oldest, ranges))
        if teaches:
            rows.extend(member_rows)
            advantages.extend(values)
    sampled = [_tokens_by_version(member_rows) for member_rows in group.rows]
    return Share(
        group,
        tuple(map(float, rewards[: len(rewards) - group.borrowed])),
        teaches,
        tuple(rows),
        tuple(advantages),
        tuple(trained),
        off_policy=sum(tokens for found in sampled for own, tokens in found.items() if chain.between(version, own)),
        carried=sum(len(found) > 1 for found in sampled),
    )


def join(shares: Sequence[Share]) -> Batch:
    """The batch that these groups make up, in their order."""
    trained = tuple(entry for share in shares for entry in share.trained)
    tokens = sum(entry.tokens for entry in trained)
    return Batch(
        groups=tuple(share.taken for share in shares),
        rows=tuple(row for share in shares for row in share.rows),
        advantages=tuple(value for share in shares for value in share.advantages),
        rewards=tuple(value for share in shares for value in share.rewards),
        staleness=max((entry.max_staleness for entry in trained), default=0),
        signal=sum(share.signal for share in shares) / len(shares),
        reduced=sum(len(share.rewards) < share.group.group.size for share in shares),
        off_policy=sum(share.off_policy for share in shares) / tokens if tokens else 0.0,
        carried=sum(share.carried for share in shares),
        borrowed=sum(share.group.borrowed for share in shares),
        trained=trained,
        excluded=tuple(entry for share in shares for entry in share.group.excluded),
    )


def _tokens_by_version(rows: Sequence[Row]) -> Counter[int]:
    """Trained tokens of a rollout by the version that sampled them."""
    found = Counter[int]()
    for row in rows:
        found.update(row.versions[row.mask != 0].tolist())
    return found


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
