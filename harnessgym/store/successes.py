"""Past successes of a task, to be trained on once more where a group of it has none."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, select

from harnessgym.store.tables import groups, rewards, rollouts, trained
from harnessgym.store.task_history import SUCCESS


@dataclass(frozen=True, slots=True)
class Success:
    """A rollout that succeeded and whose group was trained."""

    rollout_id: str
    group_id: str
    slot: int
    reward: float
    versions: tuple[int, ...]
    """Those that it was trained into, orphaned ones among them, as far as the store knows."""


def successes(
    conn: Connection, policy_id: str, task_id: str, run_id: str, also: Collection[str]
) -> list[Success]:
    """Of a run's consumed groups of a task, and of those `also` named, the newest group's first, by slot
    within a group.
    """
    reward = (
        (rewards.c.rollout_id == rollouts.c.id)
        & (rewards.c.channel == "reward")
        & (rewards.c.unit == "rollout")
    )
    own = (rollouts.c.run_id == run_id) & (rollouts.c.task_id == task_id) & (groups.c.purpose == "train")
    settled = (groups.c.state == "consumed") | groups.c.id.in_(also)
    query = (
        select(rollouts.c.id, rollouts.c.group_id, rollouts.c.slot, rewards.c.value, trained.c.version)
        .join(groups, groups.c.id == rollouts.c.group_id)
        .join(rewards, reward)
        .outerjoin(trained, (trained.c.rollout_id == rollouts.c.id) & (trained.c.policy_id == policy_id))
        .where(
            own,
            settled,
            rollouts.c.status == "finished",
            rollouts.c.verdict == "valid",
            rewards.c.value > SUCCESS,
        )
        .order_by(groups.c.ordinal.desc(), rollouts.c.slot, trained.c.version)
    )
    found: dict[str, Success] = {}
    for rollout_id, group_id, slot, value, version in conn.execute(query):
        before = found[rollout_id].versions if rollout_id in found else ()
        versions = before if version is None else (*before, version)
        found[rollout_id] = Success(rollout_id, group_id, slot, float(value), versions)
    return list(found.values())
