"""What tests of plans do with a store: versions, workers, groups that move on."""

from sqlalchemy import select

from harnessgym.store import policies, rollouts, workers
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import groups, tasks
from harnessgym.store.tables import rollouts as rollout_table
from harnessgym.store.workers import WorkerRow


def publish(store, plan, version, *, serve=True):
    row = PolicyVersion(
        version, version - 1 if version else None, "full", "", version, "", 0, committed=True, orphaned=False
    )
    store.write(lambda conn: policies.publish(conn, plan.policy_id, row))
    if serve:
        serving(store, plan, version)


def serving(store, plan, version, *, name="w0", state="ready"):
    store.write(
        lambda conn: workers.upsert(conn, WorkerRow(name, plan.run_id, "embedded", name, version, state))
    )


def submit(store, plan, status="training"):
    return store.write(lambda conn: plan.submit(conn, status))


def move(store, plan, old, new, limit):
    """Move the first `limit` training groups of a state to another; returns how many there were."""
    query = (
        select(groups.c.id)
        .where(groups.c.state == old, groups.c.purpose == "train")
        .order_by(groups.c.ordinal)
        .limit(limit)
    )
    found = store.read(lambda conn: conn.execute(query).scalars().all())
    for group_id in found:
        store.write(lambda conn, group_id=group_id: rollouts.set_group_state(conn, group_id, new))
    return len(found)


def submitted(store):
    """Everything that was submitted, without ids and times."""
    query = (
        select(groups.c.purpose, groups.c.ordinal, tasks.c.key, rollout_table.c.slot, rollout_table.c.harness)
        .add_columns(rollout_table.c.seed, groups.c.sampling)
        .join(groups, groups.c.id == rollout_table.c.group_id)
        .join(tasks, tasks.c.id == groups.c.task_id)
        .order_by(groups.c.purpose, groups.c.ordinal, rollout_table.c.slot)
    )
    return store.read(lambda conn: [tuple(row) for row in conn.execute(query)])
