"""Groups and their rollouts: submitted, claimed under a lease, finished, cancelled, or retried.

A rollout row is one attempt at one slot of a group. An attempt that fails for reasons other than the policy
keeps its row (verdict `infrastructure_error`, tokens excluded), and a new attempt takes the slot. A group is
complete when every slot has a valid or tampered rollout or was given up. If fewer than `min_members` are left
it is dropped. A cancelled rollout gives up its slot, whatever its node reports later.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlalchemy import Connection, func, insert, select, update

from harnessgym.outcome.failure import Cause, StopReason
from harnessgym.store import runs
from harnessgym.store.clock import now
from harnessgym.store.rewards import TOTAL, RewardRow
from harnessgym.store.rewards import add as add_reward
from harnessgym.store.rewards import required as required_reward
from harnessgym.store.tables import calls, exclusions, groups, new_id, rewards, rollouts, tasks

GroupState = Literal["open", "complete", "consumed", "dropped"]
RolloutStatus = Literal["pending", "running", "finished", "failed", "cancelled"]
Verdict = Literal["valid", "tampered", "infrastructure_error"]
_GRADED = (rewards.c.channel == "reward") & (rewards.c.unit == "rollout")


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group to submit: `len(harnesses)` rollouts of one task."""

    run_id: str
    task_id: str
    policy_id: str
    purpose: str
    """train, or an evaluation's name."""
    ordinal: int
    submitted_version: int
    sampling: dict[str, Any]
    """Sampling of its sessions. `turns` is the maximum number of model calls in one."""
    harnesses: tuple[str, ...]
    sandbox: str
    seeds: tuple[int, ...]
    min_members: int = 2
    """With fewer graded rollouts the group is dropped. A group of one needs only one."""
    replaces: int | None = None
    """Ordinal of the given-up group that this one replaces."""
    submitted_versions: dict[str, int] | None = None
    """Versions of the run's other policies at submission, by policy id."""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """One claimed rollout and the settings of its group."""

    id: str
    group_id: str
    run_id: str
    policy_id: str
    slot: int
    attempt: int
    harness: str
    seed: int
    purpose: str
    task_key: str
    sampling: dict[str, Any]
    submitted_version: int
    task_set: str = ""
    task_payload: dict[str, Any] | None = None
    """The task itself, if it came with a request instead of from a task set."""
    submitted_versions: dict[str, int] | None = None


OUTSIDE = "wrap-"
"""How the holder of a rollout that runs outside any node, under `harnessgym wrap`, begins."""


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """How a rollout ended."""

    rollout_id: str
    stop_reason: StopReason
    verdict: Verdict | None
    rewards: dict[str, float] = field(default_factory=dict)
    """The grader's rewards of the rollout, by channel."""
    source: str = "grader"
    detail: str | None = None
    latencies: dict[str, float] = field(default_factory=dict)
    """Seconds by stage, and seconds spent waiting for the stage under `wait.STAGE`."""
    scores: tuple[RewardRow, ...] = ()
    """Rewards other than the grader's, for any unit."""
    cause: Cause | None = None
    """What went wrong, if anything did."""
    grading: dict[str, Any] | None = None
    """The evidence for the grade, as JSON values."""

    def __post_init__(self) -> None:
        # Readers convert the stored strings back to these enums, so an unknown name must never be stored.
        assert isinstance(self.stop_reason, StopReason), self.stop_reason
        assert self.cause is None or isinstance(self.cause, Cause), self.cause


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A finished rollout of a group, as the trainer sees it."""

    rollout_id: str
    slot: int
    reward: float
    """The reward that it is trained on."""
    verdict: str
    graded: float | None = None
    """The grader's reward, if a weighted sum is trained on instead."""

    @property
    def success(self) -> float:
        """The grader's reward."""
        return self.reward if self.graded is None else self.graded


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group that is complete."""

    id: str
    ordinal: int
    task_id: str
    submitted_version: int
    size: int
    """Number of submitted rollouts. The group may have fewer members."""
    members: tuple[GroupMember, ...]


def submit(conn: Connection, spec: GroupSpec) -> str:
    """Add a group and its pending rollouts. Returns the group's id."""
    group_id = new_id()
    shared = {"run_id": spec.run_id, "task_id": spec.task_id, "policy_id": spec.policy_id}
    conn.execute(
        insert(groups).values(
            id=group_id,
            purpose=spec.purpose,
            ordinal=spec.ordinal,
            size=len(spec.harnesses),
            sampling=spec.sampling,
            submitted_version=spec.submitted_version,
            state="open",
            min_members=spec.min_members,
            replaces=spec.replaces,
            submitted_versions=spec.submitted_versions,
            **shared,
        )
    )
    rows = [
        {"id": new_id(), "group_id": group_id, "slot": slot, "attempt": 0, "harness": harness,
         "sandbox": spec.sandbox, "seed": seed, "status": "pending", "frozen": False, **shared}
        for slot, (harness, seed) in enumerate(zip(spec.harnesses, spec.seeds, strict=True))
    ]  # fmt: skip
    conn.execute(insert(rollouts), rows)
    return group_id


def start(conn: Connection, spec: GroupSpec, holder: str, ttl_s: float) -> str:
    """Add a group of one rollout that is already running outside any node, at the next free ordinal.

    Returns the rollout's id.
    """
    runs.lock(conn, spec.run_id)
    highest = select(func.max(groups.c.ordinal)).where(
        groups.c.run_id == spec.run_id, groups.c.purpose == spec.purpose
    )
    ordinal = conn.execute(highest).scalar()
    group_id = submit(conn, replace(spec, ordinal=0 if ordinal is None else ordinal + 1))
    rollout_id = conn.execute(select(rollouts.c.id).where(rollouts.c.group_id == group_id)).scalar_one()
    conn.execute(update(rollouts).where(rollouts.c.id == rollout_id).values(_begun(holder, ttl_s)))
    return str(rollout_id)


def claim(conn: Connection, run_id: str, holder: str, ttl_s: float, limit: int) -> list[RolloutRow]:
    """Lease up to `limit` pending rollouts, oldest group first.

    Skips rollouts that another node is claiming at the same time.
    """
    due = rollouts.c.not_before.is_(None) | (rollouts.c.not_before <= now())
    wanted = [rollouts.c.run_id == run_id, rollouts.c.status == "pending", due]
    picked = select(rollouts.c.id).join(groups, groups.c.id == rollouts.c.group_id).where(*wanted)
    oldest = picked.order_by(groups.c.created_at, groups.c.ordinal, rollouts.c.slot).limit(limit)
    # SKIP LOCKED lets nodes claim at the same time: each takes rows that no other transaction holds, instead
    # of waiting for a row only to see that it is no longer pending. SQLite has one writer at a time anyway.
    ids = list(conn.execute(oldest.with_for_update(of=rollouts, skip_locked=True)).scalars())
    if not ids:
        return []
    conn.execute(update(rollouts).where(rollouts.c.id.in_(ids)).values(_begun(holder, ttl_s)))
    own = ("id", "group_id", "run_id", "policy_id", "slot", "attempt", "harness", "seed")
    columns = [rollouts.c[name] for name in own]
    of_group = [groups.c.purpose, groups.c.sampling, groups.c.submitted_version, groups.c.submitted_versions]
    of_task = [
        tasks.c.key.label("task_key"),
        tasks.c.set.label("task_set"),
        tasks.c.payload.label("task_payload"),
    ]
    joined = (
        select(*columns, *of_group, *of_task)
        .join(groups, groups.c.id == rollouts.c.group_id)
        .join(tasks, tasks.c.id == groups.c.task_id)
    )
    rows_by_id = {
        row["id"]: RolloutRow(**row) for row in conn.execute(joined.where(rollouts.c.id.in_(ids))).mappings()
    }
    return [rows_by_id[rollout_id] for rollout_id in ids]


def renew(conn: Connection, rollout_ids: Sequence[str], holder: str, ttl_s: float) -> None:
    """Extend the leases of the running rollouts that `holder` still holds."""
    ours = rollouts.c.id.in_(rollout_ids) & (rollouts.c.holder == holder) & (rollouts.c.status == "running")
    conn.execute(update(rollouts).where(ours).values(lease_expires=now() + ttl_s))


def finish(conn: Connection, outcome: RolloutOutcome) -> bool:
    """Store a verdict and rewards, and complete the group if this was its last rollout.

    Returns False and stores nothing if the rollout is not running any more.
    """
    row = _end(conn, outcome, "finished")
    if row is None:
        return False
    for channel, value in outcome.rewards.items():
        add_reward(
            conn, RewardRow(outcome.rollout_id, "rollout", outcome.rollout_id, channel, value, outcome.source)
        )
    for reward in outcome.scores:
        add_reward(conn, reward)
    _complete(conn, row["group_id"])
    return True


def fail(conn: Connection, outcome: RolloutOutcome, max_attempts: int, wait_s: float = 0.0) -> bool:
    """Store an infrastructure error, exclude its tokens, and retry the slot unless its attempts are used up.

    Attempts that were lost with a dead node do not count. The next attempt can be claimed after `wait_s`.
    What `harnessgym wrap` held is not retried: no node can run its command again.
    Returns False and stores nothing if the rollout is not running any more.
    """
    row = _end(conn, outcome, "failed")
    if row is None:
        return False
    exclude(conn, outcome.rollout_id, "infrastructure_error")
    if str(row["holder"]).startswith(OUTSIDE):
        max_attempts = 0
    slot = (rollouts.c.group_id == row["group_id"]) & (rollouts.c.slot == row["slot"])
    own = slot & (rollouts.c.status == "failed") & (func.coalesce(rollouts.c.cause, "") != Cause.NODE_LOST)
    if conn.execute(select(func.count()).select_from(rollouts).where(own)).scalar_one() < max_attempts:
        kept = ("group_id", "run_id", "task_id", "policy_id", "slot", "harness", "sandbox", "seed")
        fresh = {"id": new_id(), "attempt": row["attempt"] + 1, "status": "pending", "frozen": False}
        fresh["not_before"] = now() + wait_s if wait_s else None
        conn.execute(insert(rollouts).values({name: row[name] for name in kept} | fresh))
    _complete(conn, row["group_id"])
    return True


def cancel(conn: Connection, rollout_ids: Sequence[str], detail: str = "It was cancelled.") -> list[str]:
    """Cancel the rollouts that are pending or running, and give up their slots. Returns their ids.

    In the store a running rollout ends here too. Its node notices, kills its processes and calls `settle`.
    """
    # A common order of the locks makes a deadlock between two callers unlikely.
    done = []
    for rollout_id in sorted(set(rollout_ids)):
        outcome = RolloutOutcome(rollout_id, StopReason.CANCELLED, None, detail=detail, cause=Cause.CANCELLED)
        row = _end(conn, outcome, "cancelled", ("pending", "running"))
        if row is not None:
            exclude(conn, rollout_id, "cancelled")
            _complete(conn, row["group_id"])
            done.append(rollout_id)
    return done


def retire(conn: Connection, run_id: str, purpose: str, name: str) -> int:
    """Rename the purpose of all its groups, so that it can be measured again. Returns how many groups.

    Rollouts that have not ended are cancelled: later they would be sampled from other weights.
    """
    of_purpose = (groups.c.run_id == run_id) & (groups.c.purpose == purpose)
    unended = rollouts.c.status.in_(("pending", "running"))
    query = select(rollouts.c.id).join(groups, groups.c.id == rollouts.c.group_id).where(of_purpose, unended)
    cancel(conn, list(conn.execute(query).scalars()), "The run was extended before it had ended.")
    return conn.execute(update(groups).where(of_purpose).values(purpose=name)).rowcount


def settle(conn: Connection, rollout_id: str, latencies: dict[str, float]) -> None:
    """Store the latencies of a cancelled rollout after its processes have ended. Ignores other rollouts."""
    # Calls may have been recorded between the cancellation and the end of the processes: exclude their
    # tokens too.
    ours = (rollouts.c.id == rollout_id) & (rollouts.c.status == "cancelled")
    if conn.execute(update(rollouts).where(ours).values(latencies=latencies)).rowcount:
        exclude(conn, rollout_id, "cancelled")


def not_running(conn: Connection, rollout_ids: Sequence[str], holder: str) -> list[str]:
    """Return the rollouts that their node should stop: ended or cancelled, or claimed by another holder."""
    query = select(rollouts.c.id).where(rollouts.c.id.in_(rollout_ids))
    return list(
        conn.execute(query.where((rollouts.c.status != "running") | (rollouts.c.holder != holder))).scalars()
    )


def lost(conn: Connection, run_id: str) -> list[str]:
    """Return the running rollouts whose lease has expired."""
    expired = rollouts.c.lease_expires < now()
    query = select(rollouts.c.id).where(rollouts.c.run_id == run_id, rollouts.c.status == "running", expired)
    return list(conn.execute(query).scalars())


def lost_outside(conn: Connection) -> list[str]:
    """Return the rollouts of all runs that `harnessgym wrap` held and no longer does."""
    ours = rollouts.c.holder.startswith(OUTSIDE, autoescape=True) & (rollouts.c.lease_expires < now())
    return list(conn.execute(select(rollouts.c.id).where(ours, rollouts.c.status == "running")).scalars())


def expire(conn: Connection, run_id: str, node: str | None = None) -> None:
    """End the leases of rollouts whose nodes are known to be dead: all nodes, or the one with this name."""
    # What `harnessgym wrap` holds may still be running.
    holder = (
        ~rollouts.c.holder.startswith(OUTSIDE, autoescape=True)
        if node is None
        else rollouts.c.holder.startswith(f"{node}@", autoescape=True)
    )
    running = (rollouts.c.run_id == run_id) & (rollouts.c.status == "running") & holder
    conn.execute(update(rollouts).where(running).values(lease_expires=0.0))


def exclude(conn: Connection, rollout_id: str, reason: str) -> None:
    """Exclude every call of a rollout that sampled tokens and has no exclusion yet."""
    done = select(exclusions.c.call_id).where(exclusions.c.rollout_id == rollout_id)
    sampled = [calls.c.rollout_id == rollout_id, calls.c.completion_len > 0, calls.c.id.not_in(done)]
    for call_id, length in conn.execute(select(calls.c.id, calls.c.completion_len).where(*sampled)).all():
        values = {
            "id": new_id(),
            "rollout_id": rollout_id,
            "call_id": call_id,
            "start": 0,
            "end": length,
            "reason": reason,
        }
        conn.execute(insert(exclusions).values(values))


def complete_groups(conn: Connection, run_id: str, purpose: str, limit: int) -> list[GroupRow]:
    """Return the next groups in order of submission, up to the first that is not complete.

    Raises `StoreError` if one of their finished rollouts has no reward.
    """
    # Stopping at the first open group keeps the order of training independent of how fast rollouts end.
    state = groups.c.state.in_(("open", "complete"))
    query = select(groups).where(groups.c.run_id == run_id, groups.c.purpose == purpose, state)
    out = []
    for row in conn.execute(query.order_by(groups.c.ordinal).limit(limit)).mappings():
        if row["state"] != "complete":
            break
        out.append(_group(conn, row))
    return out


def group(conn: Connection, group_id: str) -> GroupRow:
    """Return one group, which must be complete.

    Raises `StoreError` if one of its finished rollouts has no reward.
    """
    return _group(conn, conn.execute(select(groups).where(groups.c.id == group_id)).mappings().one())


def set_group_state(conn: Connection, group_id: str, state: GroupState) -> None:
    """Set the state of a group."""
    conn.execute(update(groups).where(groups.c.id == group_id).values(state=state))


def group_states(conn: Connection, run_id: str, purpose: str) -> dict[str, int]:
    """Count the groups of a purpose by state."""
    query = select(groups.c.state, func.count()).where(groups.c.run_id == run_id, groups.c.purpose == purpose)
    return dict(conn.execute(query.group_by(groups.c.state)).all())


def unfinished(conn: Connection, run_id: str, purpose: str) -> int:
    """Count the rollouts in a purpose's open groups that have not ended."""
    open_groups = (groups.c.run_id == run_id) & (groups.c.purpose == purpose) & (groups.c.state == "open")
    query = select(func.count()).select_from(rollouts).join(groups, groups.c.id == rollouts.c.group_id)
    return int(
        conn.execute(query.where(open_groups, rollouts.c.status.in_(("pending", "running")))).scalar_one()
    )


def rollout_states(conn: Connection, run_id: str) -> dict[str, int]:
    """Count the rollouts of a run by status."""
    query = (
        select(rollouts.c.status, func.count()).where(rollouts.c.run_id == run_id).group_by(rollouts.c.status)
    )
    return dict(conn.execute(query).all())


def rewards_of(conn: Connection, run_id: str, purpose: str, channel: str = "reward") -> list[float]:
    """Return the rewards of a purpose's finished rollouts in order of group and slot.

    Raises `StoreError` if one of them has none.
    """
    own = (rewards.c.channel == channel) & (rewards.c.unit == "rollout")
    reward = (rewards.c.rollout_id == rollouts.c.id) & own
    query = (
        select(rollouts.c.id, rewards.c.value)
        .join(groups, groups.c.id == rollouts.c.group_id)
        .outerjoin(rewards, reward)
        .where(groups.c.run_id == run_id, groups.c.purpose == purpose, rollouts.c.status == "finished")
        .order_by(groups.c.ordinal, rollouts.c.slot)
    )
    return [required_reward(value, rollout_id, channel) for rollout_id, value in conn.execute(query)]


def best(conn: Connection, run_id: str, limit: int) -> list[str]:
    """Return the ids of the training rollouts with the highest rewards, newest first among equals."""
    query = (
        select(rollouts.c.id)
        .join(rewards, rewards.c.rollout_id == rollouts.c.id)
        .join(groups, groups.c.id == rollouts.c.group_id)
        .where(rollouts.c.run_id == run_id, groups.c.purpose == "train", _GRADED)
        .order_by(rewards.c.value.desc(), rollouts.c.ended_at.desc())
        .limit(limit)
    )
    return list(conn.execute(query).scalars())


def _begun(holder: str, ttl_s: float) -> dict[str, Any]:
    return {"status": "running", "holder": holder, "lease_expires": now() + ttl_s, "started_at": now()}


def _end(
    conn: Connection,
    outcome: RolloutOutcome,
    status: RolloutStatus,
    ending: Sequence[RolloutStatus] = ("running",),
) -> Any:
    own_group = select(rollouts.c.group_id).where(rollouts.c.id == outcome.rollout_id).scalar_subquery()
    # Two rollouts of a group that end at once would each see the other still running, and neither would
    # complete the group. The second waits here for the first's commit and completes it.
    conn.execute(select(groups.c.id).where(groups.c.id == own_group).with_for_update(key_share=True))
    ours = (rollouts.c.id == outcome.rollout_id) & rollouts.c.status.in_(ending)
    row = conn.execute(select(rollouts).where(ours).with_for_update(of=rollouts)).mappings().first()
    if row is None:
        return None
    own = ("stop_reason", "verdict", "detail", "latencies", "cause", "grading")
    values = {name: getattr(outcome, name) for name in own} | {"status": status, "ended_at": now()}
    conn.execute(update(rollouts).where(rollouts.c.id == outcome.rollout_id).values(values))
    return row


def _complete(conn: Connection, group_id: str) -> None:
    unfinished = rollouts.c.status.in_(("pending", "running"))
    counts = select(func.count()).select_from(rollouts).where(rollouts.c.group_id == group_id)
    if conn.execute(counts.where(unfinished)).scalar_one() == 0:
        valid = conn.execute(counts.where(rollouts.c.status == "finished")).scalar_one()
        size, wanted = conn.execute(
            select(groups.c.size, groups.c.min_members).where(groups.c.id == group_id)
        ).one()
        enough = valid >= min(wanted, size)
        set_group_state(conn, group_id, "complete" if enough else "dropped")
        if not enough:
            conn.execute(update(groups).where(groups.c.id == group_id).values(given_up="too_few"))
            for rollout_id in (
                conn.execute(select(rollouts.c.id).where(rollouts.c.group_id == group_id)).scalars().all()
            ):
                exclude(conn, rollout_id, "group_dropped")


def _group(conn: Connection, row: Any) -> GroupRow:
    kept = {name: row[name] for name in ("id", "ordinal", "task_id", "submitted_version", "size")}
    return GroupRow(**kept, members=_members(conn, row["id"], training=row["purpose"] == "train"))


def _members(conn: Connection, group_id: str, *, training: bool) -> tuple[GroupMember, ...]:
    """Return a group's finished rollouts. For training, their reward is the weighted sum if there is one."""
    total = rewards.alias("total")
    query = (
        select(
            rollouts.c.id, rollouts.c.slot, rewards.c.value, total.c.value.label("total"), rollouts.c.verdict
        )
        .outerjoin(rewards, (rewards.c.rollout_id == rollouts.c.id) & _GRADED)
        .outerjoin(
            total,
            (total.c.rollout_id == rollouts.c.id) & (total.c.channel == TOTAL) & (total.c.unit == "rollout"),
        )
        .where(rollouts.c.group_id == group_id, rollouts.c.status == "finished")
        .order_by(rollouts.c.slot)
    )
    rows = conn.execute(query).all()
    graded = {row.id: required_reward(row.value, row.id) for row in rows}
    if not training or all(row.total is None for row in rows):
        return tuple(GroupMember(row.id, row.slot, graded[row.id], row.verdict) for row in rows)
    totals = {row.id: required_reward(row.total, row.id, TOTAL) for row in rows}
    # Penalties can push valid rollouts below a tampered one, which is not scored. Tampering must never be
    # worth more than the worst valid rollout, so its total is capped there.
    lowest = min((totals[row.id] for row in rows if row.verdict == "valid"), default=0.0)
    trained = {
        row.id: min(totals[row.id], lowest) if row.verdict == "tampered" else totals[row.id] for row in rows
    }
    return tuple(GroupMember(row.id, row.slot, trained[row.id], row.verdict, graded[row.id]) for row in rows)
