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
from harnessgym.traces.trajectories import Row, rows_of

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
    trained: tuple[TrainedRollout, ...]
    excluded: tuple[ExcludedTokens, ...]


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """A group with its rows read."""

    group: GroupRow
    rows: tuple[tuple[Row, ...], ...]
    """Per member."""
    excluded: tuple[ExcludedTokens, ...]

    def staleness(self, version: int, chain: VersionChain) -> int:
        """Of its oldest token, if trained in a step from `version`."""
        return chain.oldest(version, (row.versions for rows in self.rows for row in rows))


def load_group(store: TraceStore, group: GroupRow) -> LoadedGroup:
    """Read a complete group's rows."""
    found = [store.read(partial(rows_of, rollout_id=member.rollout_id, group_id=group.id)) for member in group.members]
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

    Groups whose rewards are all equal teach nothing: their rows are left out of the step and of its means (as in DAPO,
    arXiv 2503.14476), and the ledger counts them as trained with advantage zero. `shuffle` permutes the rewards over all
    rollouts first: the control in which nothing can be learnt.
    """
    rewards = np.array([member.reward for item in groups for member in item.group.members])
    if shuffle is not None:
        rewards = shuffle.permutation(rewards)
    rows: list[Row] = []
    advantages: list[float] = []
    trained: list[TrainedRollout] = []
    at, signal = 0, 0
    for item in groups:
        own = rewards[at : at + len(item.group.members)]
        at += len(own)
        teaches = bool(own.std() > 0)
        signal += teaches
        for member, member_rows, advantage in zip(item.group.members, item.rows, estimator(own), strict=True):
            tokens = sum(int(row.mask.sum()) for row in member_rows)
            oldest = chain.oldest(version, (row.versions for row in member_rows))
            value = float(advantage) if teaches else 0.0
            trained.append(TrainedRollout(member.rollout_id, tokens, oldest, ranges_of(member_rows, value)))
            if teaches:
                rows.extend(member_rows)
                advantages.extend([value] * len(member_rows))
    return Batch(
        group_ids=tuple(item.group.id for item in groups),
        rows=tuple(rows),
        advantages=tuple(advantages),
        rewards=tuple(float(reward) for reward in rewards),
        staleness=max((share.max_staleness for share in trained), default=0),
        signal=signal / len(groups),
        trained=tuple(trained),
        excluded=tuple(entry for item in groups for entry in item.excluded),
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
