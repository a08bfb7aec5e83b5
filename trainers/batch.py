"""A training batch: complete groups from the store, as rows with advantages."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from harnessgym.errors import TrainerError
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore
from harnessgym.store.advantages import AdvantageRange
from harnessgym.store.ledger import ExcludedTokens, TrainedRollout
from harnessgym.store.rollouts import GroupRow
from harnessgym.tokens import FloatArray
from harnessgym.traces.trajectories import Credit, Row, Trajectory, rows_of
from trainers.advantages.estimator import Advantages, Estimator, OverBatch, Scored, Value
from trainers.high_entropy import surest_masked
from trainers.reward_shuffle import shuffled


@dataclass(frozen=True, slots=True)
class TakenGroup:
    """A group that a batch is made of."""

    id: str
    ordinal: int
    staleness: int
    """Its oldest token's."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with their advantages, and what the ledger will say of all that the step consumes."""

    groups: tuple[TakenGroup, ...]
    rows: tuple[Row, ...]
    """Of groups with a signal; the others have no gradient."""
    advantages: tuple[Value, ...]
    """Per row: a number, or float32 [T]."""
    rewards: tuple[float, ...]
    """What is trained on, one per rollout of its own groups."""
    graded: tuple[float, ...]
    """The grader's, likewise."""
    staleness: int
    """Oldest token's."""
    signal: float
    """Share of groups that teach anything: some trained token has an advantage other than zero."""
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
    credit: tuple[Credit, ...] = ()
    """Per member; none where nothing but its reward is known."""
    borrowed: int = 0
    """Of the members, the last ones, those that are another group's (`trainers.success_pool`)."""

    @property
    def scored(self) -> tuple[Scored, ...]:
        """Its members as estimators see them."""
        credit = self.credit or (Credit(),) * len(self.rows)
        return tuple(
            Scored(
                member.rollout_id,
                member.reward,
                rows,
                own.rewards,
                own.agents,
                self.group.task_id,
                tampered=member.verdict == "tampered",
            )
            for member, rows, own in zip(self.group.members, self.rows, credit, strict=True)
        )

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """One per member, float64 [G]."""
        return np.array([member.reward for member in self.group.members], dtype=np.float64)

    @property
    def graded(self) -> npt.NDArray[np.float64]:
        """The grader's reward of each member, float64 [G]."""
        return np.array([member.success for member in self.group.members], dtype=np.float64)

    @property
    def signal(self) -> bool:
        """Whether its rewards differ. With an estimator that looks at more, equal ones may teach too: see
        `gives_signal`.
        """
        return len(set(self.rewards.tolist())) > 1

    def staleness(self, version: int, chain: VersionChain) -> int:
        """Of its oldest token, if trained in a step from `version`."""
        return chain.oldest(version, (row.versions for rows in self.rows for row in rows))


@dataclass(frozen=True, slots=True)
class GroupPart:
    """What one group brings to a batch."""

    group: LoadedGroup
    rewards: tuple[float, ...]
    """Of its own members."""
    graded: tuple[float, ...]
    """The grader's, likewise."""
    signal: bool
    rows: tuple[Row, ...]
    """None without a signal, and none of rollouts that the estimator drops."""
    advantages: tuple[Value, ...]
    """One per row."""
    trained: tuple[TrainedRollout, ...]
    off_policy: int
    """Trained tokens that another version sampled than the step starts from."""
    carried: int
    """Rollouts that more than one version sampled."""

    @property
    def taken(self) -> TakenGroup:
        """The group, as the batch names it."""
        group = self.group.group
        return TakenGroup(
            group.id, group.ordinal, max((entry.max_staleness for entry in self.trained), default=0)
        )


def load_group(store: TraceStore, group: GroupRow) -> LoadedGroup:
    """Read a complete group's rows."""
    found = [
        store.read(partial(rows_of, rollout_id=member.rollout_id, group_id=group.id))
        for member in group.members
    ]
    return loaded(group, found)


def loaded(group: GroupRow, found: Sequence[Trajectory]) -> LoadedGroup:
    """A group with what was read of its members, in their order."""
    excluded = [
        ExcludedTokens(member.rollout_id, item.call_id, item.start, item.end, item.reason)
        for member, trajectory in zip(group.members, found, strict=True)
        for item in trajectory.exclusions
    ]
    rows = tuple(item.rows for item in found)
    credit = tuple(item.credit for item in found)
    return LoadedGroup(group, rows, tuple(excluded), credit)


def make_batch(
    groups: Sequence[LoadedGroup],
    version: int,
    chain: VersionChain,
    estimator: Estimator,
    shuffle: np.random.Generator | None,
    steps_kept: float = 1.0,
) -> Batch:
    """Join groups for a step from `version`.

    `shuffle` permutes the rewards over all rollouts first: the control in which nothing can be learnt.
    `steps_kept` is `share_of`'s.
    """
    if shuffle is not None:
        groups = shuffled(groups, shuffle)
    found = [estimator(group.scored) for group in groups]
    if isinstance(estimator, OverBatch):
        found = estimator.over_batch(found)
    return join(
        [share_of(group, own, version, chain, steps_kept) for group, own in zip(groups, found, strict=True)]
    )


def gives_signal(estimator: Estimator, group: LoadedGroup) -> bool:
    """Whether a group teaches anything, as its estimator sees it."""
    return _teaches(group, estimator(group.scored))


def share_of(
    group: LoadedGroup, advantages: Advantages, version: int, chain: VersionChain, steps_kept: float = 1.0
) -> GroupPart:
    """A group's part in a step from `version`, with these advantages.

    If they are zero for all tokens it teaches nothing: its rows are left out of the step and of its means (as
    in DAPO, arXiv 2503.14476), and so are those of a rollout that is dropped. The ledger counts both as
    trained with advantage zero. With `steps_kept` below 1 the other turns of a group that teaches have
    advantage zero too, and count in every mean (`trainers.high_entropy`). Raises `TrainerError` for
    advantages that are not finite.
    """
    signal = _teaches(group, advantages)
    if signal and steps_kept < 1:
        advantages = surest_masked(group.rows, advantages, steps_kept)
    rows: list[Row] = []
    values: list[Value] = []
    trained: list[TrainedRollout] = []
    for member, member_rows, own in zip(group.group.members, group.rows, advantages, strict=True):
        tokens = sum(int(row.mask.sum()) for row in member_rows)
        oldest = chain.oldest(version, (row.versions for row in member_rows))
        given: list[Value] = [0.0] * len(member_rows) if own is None or not signal else own
        if not all(np.isfinite(value).all() for value in given):
            raise TrainerError(
                f"Rollout {member.rollout_id} has an advantage that is not finite. Check rewards and "
                "estimator."
            )
        ranges = [ranges_of([row], value) for row, value in zip(member_rows, given, strict=True)]
        trained.append(
            TrainedRollout(member.rollout_id, tokens, oldest, tuple(item for each in ranges for item in each))
        )
        if signal and own is not None:
            rows.extend(member_rows)
            values.extend(given)
    sampled = [_tokens_by_version(member_rows) for member_rows in group.rows]
    own_members = len(group.rows) - group.borrowed
    return GroupPart(
        group,
        tuple(group.rewards.tolist()[:own_members]),
        tuple(group.graded.tolist()[:own_members]),
        signal,
        tuple(rows),
        tuple(values),
        tuple(trained),
        off_policy=sum(
            tokens for found in sampled for own, tokens in found.items() if chain.between(version, own)
        ),
        carried=sum(len(found) > 1 for found in sampled),
    )


def join(shares: Sequence[GroupPart]) -> Batch:
    """The batch that these groups make up, in their order."""
    trained = tuple(entry for share in shares for entry in share.trained)
    tokens = sum(entry.tokens for entry in trained)
    return Batch(
        groups=tuple(share.taken for share in shares),
        rows=tuple(row for share in shares for row in share.rows),
        advantages=tuple(value for share in shares for value in share.advantages),
        rewards=tuple(value for share in shares for value in share.rewards),
        graded=tuple(value for share in shares for value in share.graded),
        staleness=max((entry.max_staleness for entry in trained), default=0),
        signal=sum(share.signal for share in shares) / len(shares),
        reduced=sum(len(share.rewards) < share.group.group.size for share in shares),
        off_policy=sum(share.off_policy for share in shares) / tokens if tokens else 0.0,
        carried=sum(share.carried for share in shares),
        borrowed=sum(share.group.borrowed for share in shares),
        trained=trained,
        excluded=tuple(entry for share in shares for entry in share.group.excluded),
    )


def _teaches(group: LoadedGroup, advantages: Advantages) -> bool:
    kept = ((rows, own) for rows, own in zip(group.rows, advantages, strict=True) if own is not None)
    return any(
        np.any((np.asarray(value) != 0) & (row.mask != 0))
        for rows, own in kept
        for row, value in zip(rows, own, strict=True)
    )


def _tokens_by_version(rows: Sequence[Row]) -> Counter[int]:
    """Trained tokens of a rollout by the version that sampled them."""
    found = Counter[int]()
    for row in rows:
        found.update(row.versions[row.mask != 0].tolist())
    return found


def ranges_of(rows: Sequence[Row], advantage: float | FloatArray) -> tuple[AdvantageRange, ...]:
    """The advantage of every trained token of some rows, call by call: one number, or float [T] for a single
    row of length T.

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
                    out.append(
                        AdvantageRange(
                            turn.call_id, start - turn.start, end - turn.start, float(values[start])
                        )
                    )
    return tuple(out)
