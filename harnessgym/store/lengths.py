"""How many tokens the finished rollouts of each training group sampled.

The learner compares the lengths of trained rollouts with those of all that ended; the former may be shorter.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from harnessgym.store.tables import calls, groups, rollouts


@dataclass(frozen=True, slots=True)
class GroupLength:
    """The graded rollouts of a group and their tokens."""

    id: str
    ordinal: int
    state: str
    rollouts: int
    tokens: int
    """Sampled by all these rollouts."""


def lengths(conn: Connection, run_id: str, first: int) -> list[GroupLength]:
    """Return the training groups from the ordinal `first` on, in order of submission."""
    sampled = (
        select(
            rollouts.c.group_id,
            rollouts.c.id,
            func.coalesce(func.sum(calls.c.completion_len), 0).label("tokens"),
        )
        .join(groups, groups.c.id == rollouts.c.group_id)
        .outerjoin(calls, calls.c.rollout_id == rollouts.c.id)
        .where(groups.c.run_id == run_id, groups.c.purpose == "train", groups.c.ordinal >= first)
        .where(rollouts.c.status == "finished")
        .group_by(rollouts.c.group_id, rollouts.c.id)
        .subquery()
    )
    query = (
        select(
            groups.c.id,
            groups.c.ordinal,
            groups.c.state,
            func.count(sampled.c.id),
            func.coalesce(func.sum(sampled.c.tokens), 0),
        )
        .outerjoin(sampled, sampled.c.group_id == groups.c.id)
        .where(groups.c.run_id == run_id, groups.c.purpose == "train", groups.c.ordinal >= first)
        .group_by(groups.c.id, groups.c.ordinal, groups.c.state)
        .order_by(groups.c.ordinal)
    )
    return [
        GroupLength(group_id, ordinal, state, int(number), int(tokens))
        for group_id, ordinal, state, number, tokens in conn.execute(query)
    ]
