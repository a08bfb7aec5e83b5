"""A training batch: complete groups from the store, as rows with advantages.

With `filter.steps_kept` below 1 only a group's high-entropy turns are trained (DART; known from third-party
notes). The entropy of a turn is estimated as the mean of -log mu over the tokens that the policy sampled in
it. Tokens of the other turns get an advantage of zero: they have no gradient, and no denominator changes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class TakenGroup:
    """A group of a batch."""

    id: str
    ordinal: int
    staleness: int
    """Staleness of its oldest token."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with their advantages, and the ledger entries for all that the step consumes."""

    groups: tuple[TakenGroup, ...]
    rows: tuple[Row, ...]
    """Rows of the groups with a signal; the others have no gradient."""
    advantages: tuple[Value, ...]
    """Per row: a number, or float32 [T]."""
    rewards: tuple[float, ...]
    """What is trained on, one per rollout of the groups, without borrowed ones."""
    graded: tuple[float, ...]
    """The grader's rewards of the same rollouts."""
    staleness: int
    """Staleness of the oldest token."""
    signal: float
    """Share of groups with a signal, in which some trained token has an advantage other than zero."""
    reduced: int
    """Groups of which not every rollout was graded."""
    off_policy: float
    """Share of the trained tokens that were not sampled by the version that the step starts from."""
    carried: int
    """Rollouts that more than one version sampled."""
    borrowed: int
    """Rollouts that were borrowed from other groups."""
    trained: tuple[TrainedRollout, ...]
    excluded: tuple[ExcludedTokens, ...]

    @property
    def group_ids(self) -> tuple[str, ...]:
        """Ids of all groups that the step consumes."""
        return tuple(item.id for item in self.groups)


@dataclass(frozen=True, slots=True)
class LoadedGroup:
    """A group with its rows."""

    group: GroupRow
    rows: tuple[tuple[Row, ...], ...]
    """Per member."""
    excluded: tuple[ExcludedTokens, ...]
    credit: tuple[Credit, ...] = ()
    """Per member; empty if only the members' rewards are known."""
    borrowed: int = 0
    """How many of the members, at the end, come from other groups (`trainers.replay.SuccessPool`)."""

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
        """Whether its rewards differ. Some estimators find a signal in equal rewards, too: see
        `gives_signal`.
        """
        return len(set(self.rewards.tolist())) > 1

    def staleness(self, version: int, chain: VersionChain) -> int:
        """Staleness of its oldest token in a step from `version`."""
        return chain.oldest(version, (row.versions for rows in self.rows for row in rows))


@dataclass(frozen=True, slots=True)
class GroupPart:
    """One group's part of a batch."""

    group: LoadedGroup
    rewards: tuple[float, ...]
    """What its members are trained on, without borrowed ones."""
    graded: tuple[float, ...]
    """The grader's rewards of the same members."""
    signal: bool
    rows: tuple[Row, ...]
    """Empty without a signal; without the rows of rollouts that the estimator drops."""
    advantages: tuple[Value, ...]
    """One per row."""
    trained: tuple[TrainedRollout, ...]
    off_policy: int
    """Trained tokens that were not sampled by the version that the step starts from."""
    carried: int
    """Rollouts that more than one version sampled."""

    @property
    def as_listed(self) -> TakenGroup:
        """The entry of `Batch.groups` for this group."""
        group = self.group.group
        return TakenGroup(
            group.id, group.ordinal, max((entry.max_staleness for entry in self.trained), default=0)
        )


def load_group(store: TraceStore, group: GroupRow, *, with_experts: bool = False) -> LoadedGroup:
    """Read a complete group's rows, with their routed experts if `with_experts`."""
    trajectories = [
        store.read(
            partial(rows_of, rollout_id=member.rollout_id, group_id=group.id, with_experts=with_experts)
        )
        for member in group.members
    ]
    return loaded(group, trajectories)


def loaded(group: GroupRow, trajectories: Sequence[Trajectory]) -> LoadedGroup:
    """A group with its members' trajectories, in their order."""
    excluded = [
        ExcludedTokens(member.rollout_id, item.call_id, item.start, item.end, item.reason)
        for member, trajectory in zip(group.members, trajectories, strict=True)
        for item in trajectory.exclusions
    ]
    rows = tuple(item.rows for item in trajectories)
    credit = tuple(item.credit for item in trajectories)
    return LoadedGroup(group, rows, tuple(excluded), credit)


def make_batch(
    groups: Sequence[LoadedGroup],
    version: int,
    chain: VersionChain,
    estimator: Estimator,
    shuffle: np.random.Generator | None,
    steps_kept: float = 1.0,
    *,
    all_groups: bool = False,
) -> Batch:
    """Join groups for a step from `version`.

    `shuffle` permutes the rewards over all rollouts first: the control experiment, in which nothing can be
    learnt. `steps_kept` and `all_groups` are passed to `group_part`.
    """
    if shuffle is not None:
        groups = shuffled(groups, shuffle)
    advantages = [estimator(group.scored) for group in groups]
    if isinstance(estimator, OverBatch):
        advantages = estimator.over_batch(advantages)
    return join(
        [
            group_part(group, own, version, chain, steps_kept, all_groups=all_groups)
            for group, own in zip(groups, advantages, strict=True)
        ]
    )


def gives_signal(estimator: Estimator, group: LoadedGroup) -> bool:
    """Whether the estimator gives any trained token of the group an advantage other than zero."""
    return _has_signal(group, estimator(group.scored))


def group_part(
    group: LoadedGroup,
    advantages: Advantages,
    version: int,
    chain: VersionChain,
    steps_kept: float = 1.0,
    *,
    all_groups: bool = False,
) -> GroupPart:
    """A group's part in a step from `version`, with these advantages.

    If they are zero for all tokens, the group's rows are left out of the step and its means (as in DAPO,
    arXiv 2503.14476), and so are those of a dropped rollout. The ledger counts both as trained with advantage
    zero. With `steps_kept` below 1 the low-entropy turns of a group with a signal have advantage zero, too,
    but count in every mean. With `all_groups` a group without a signal takes part, too: its tokens' losses
    have terms beside the advantage. Raises `TrainerError` for advantages that are not finite.
    """
    signal = _has_signal(group, advantages) or all_groups
    if signal and steps_kept < 1:
        advantages = surest_masked(group.rows, advantages, steps_kept)
    rows: list[Row] = []
    values: list[Value] = []
    trained: list[TrainedRollout] = []
    for member, member_rows, own in zip(group.group.members, group.rows, advantages, strict=True):
        tokens = sum(int(row.mask.sum()) for row in member_rows)
        oldest = chain.oldest(version, (row.versions for row in member_rows))
        member_values: list[Value] = [0.0] * len(member_rows) if own is None or not signal else own
        if not all(np.isfinite(value).all() for value in member_values):
            raise TrainerError(
                f"Rollout {member.rollout_id} has an advantage that is not finite. Check the rewards and the "
                "estimator."
            )
        ranges = [ranges_of([row], value) for row, value in zip(member_rows, member_values, strict=True)]
        trained.append(
            TrainedRollout(member.rollout_id, tokens, oldest, tuple(item for each in ranges for item in each))
        )
        if signal and own is not None:
            rows.extend(member_rows)
            values.extend(member_values)
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
            tokens for counts in sampled for own, tokens in counts.items() if chain.between(version, own)
        ),
        carried=sum(len(counts) > 1 for counts in sampled),
    )


def join(parts: Sequence[GroupPart]) -> Batch:
    """The batch of these parts, in their order."""
    trained = tuple(entry for part in parts for entry in part.trained)
    tokens = sum(entry.tokens for entry in trained)
    return Batch(
        groups=tuple(part.as_listed for part in parts),
        rows=tuple(row for part in parts for row in part.rows),
        advantages=tuple(value for part in parts for value in part.advantages),
        rewards=tuple(value for part in parts for value in part.rewards),
        graded=tuple(value for part in parts for value in part.graded),
        staleness=max((entry.max_staleness for entry in trained), default=0),
        signal=sum(part.signal for part in parts) / len(parts),
        reduced=sum(len(part.rewards) < part.group.group.size for part in parts),
        off_policy=sum(part.off_policy for part in parts) / tokens if tokens else 0.0,
        carried=sum(part.carried for part in parts),
        borrowed=sum(part.group.borrowed for part in parts),
        trained=trained,
        excluded=tuple(entry for part in parts for entry in part.group.excluded),
    )


def _has_signal(group: LoadedGroup, advantages: Advantages) -> bool:
    kept = ((rows, own) for rows, own in zip(group.rows, advantages, strict=True) if own is not None)
    return any(
        np.any((np.asarray(value) != 0) & (row.mask != 0))
        for rows, own in kept
        for row, value in zip(rows, own, strict=True)
    )


def _tokens_by_version(rows: Sequence[Row]) -> Counter[int]:
    """A rollout's trained tokens, counted by the version that sampled them."""
    tokens = Counter[int]()
    for row in rows:
        tokens.update(row.versions[row.mask != 0].tolist())
    return tokens


def ranges_of(rows: Sequence[Row], advantage: float | FloatArray) -> tuple[AdvantageRange, ...]:
    """The advantages of all trained tokens of some rows, as ranges of equal value within a call.

    `advantage` is one number, or float [T] for a single row of length T.
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


def turn_entropies(row: Row) -> list[float | None]:
    """The entropy of each turn of a row, nats per token; None for a turn without trained tokens."""
    out: list[float | None] = []
    for turn in row.turns:
        sampled = row.mask[turn.start : turn.end] == 1
        out.append(float(-row.logprobs[turn.start : turn.end][sampled].mean()) if sampled.any() else None)
    return out


def surest_masked(rows: Sequence[Sequence[Row]], advantages: Advantages, share: float) -> Advantages:
    """A group's advantages, set to zero in the turns that are left out. Dropped rollouts are not compared."""
    trained = [row for own, values in zip(rows, advantages, strict=True) if values is not None for row in own]
    kept = iter(kept_turns(trained, share))
    return [
        values and [np.asarray(value, dtype=np.float32) * next(kept) for value in values]
        for values in advantages
    ]


def kept_turns(rows: Sequence[Row], share: float) -> list[FloatArray]:
    """Per row of a group, float32 [T]: 0 in turns whose entropy is below the (1 - share) quantile over all
    turns, else 1.
    """
    entropies = [turn_entropies(row) for row in rows]
    known = [value for own in entropies for value in own if value is not None]
    least = float(np.quantile(known, 1 - share)) if known else 0.0
    out = []
    for row, own in zip(rows, entropies, strict=True):
        kept = np.ones(len(row.ids), dtype=np.float32)
        for turn, value in zip(row.turns, own, strict=True):
            if value is not None and value < least:
                kept[turn.start : turn.end] = 0.0
        out.append(kept)
    return out


def shuffled(groups: "Sequence[LoadedGroup]", random: np.random.Generator) -> "list[LoadedGroup]":
    """The groups with their rewards permuted over all rollouts, the channels of a rollout together; the
    rewards of calls and of agents are permuted likewise.

    This is the control experiment: the rewards are the same and carry no information about the rollouts.
    """
    pairs = [pair for group in groups for pair in zip(group.group.members, _credit(group), strict=True)]
    members = [(member.reward, member.graded, member.verdict, credit.rewards) for member, credit in pairs]
    by_member = iter([members[at] for at in random.permutation(len(members))])
    turns = {
        turn.call_id: turn.rewards
        for group in groups
        for rows in group.rows
        for row in rows
        for turn in row.turns
    }
    by_call = dict(
        zip(turns, [list(turns.values())[at] for at in random.permutation(len(turns))], strict=True)
    )
    agents = [own for group in groups for credit in _credit(group) for own in credit.agents.values()]
    by_agent = iter([agents[at] for at in random.permutation(len(agents))])
    out = []
    for group in groups:
        permuted = [next(by_member) for _ in group.group.members]
        renamed = tuple(
            replace(member, reward=reward, graded=graded, verdict=verdict)
            for member, (reward, graded, verdict, _) in zip(group.group.members, permuted, strict=True)
        )
        credit = tuple(
            Credit(rewards, {agent: next(by_agent) for agent in own.agents})
            for (*_, rewards), own in zip(permuted, _credit(group), strict=True)
        )
        rows = tuple(tuple(_with_rewards(row, by_call) for row in each) for each in group.rows)
        out.append(replace(group, group=replace(group.group, members=renamed), rows=rows, credit=credit))
    return out


def _credit(group: "LoadedGroup") -> tuple[Credit, ...]:
    return group.credit or (Credit(),) * len(group.rows)


def _with_rewards(row: Row, by_call: dict[str, dict[str, float]]) -> Row:
    return replace(row, turns=tuple(replace(turn, rewards=by_call[turn.call_id]) for turn in row.turns))
