"""Rollouts that a client requests, in addition to those that a run plans.

Their task is stored whole, so any node can run them.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, func, select

from harnessgym.errors import StoreError
from harnessgym.store import rollouts, runs
from harnessgym.store.backend import insert_into
from harnessgym.store.rollouts import GroupSpec
from harnessgym.store.tables import groups, new_id, tasks
from harnessgym.store.tables import rollouts as rollout_rows

PURPOSE = "request"
"""Purpose of requested groups; a named group has the purpose `request/NAME`."""


@dataclass(frozen=True, slots=True)
class Requested:
    """A group that was requested."""

    group_id: str
    rollout_ids: tuple[str, ...]
    """Ids of the first attempts, by slot."""
    new: bool
    """False if a group of this name existed already."""


def add_task(conn: Connection, task_set: str, key: str, split: str, payload: dict[str, Any]) -> str:
    """Return the row id of a task that is stored whole. Inserts it if the payload is new."""
    digest = hashlib.blake2b(json.dumps(payload, sort_keys=True).encode(), digest_size=16).hexdigest()
    same = (tasks.c.set == task_set) & (tasks.c.key == key) & (tasks.c.payload_hash == digest)
    row = {
        "id": new_id(),
        "set": task_set,
        "key": key,
        "split": split,
        "payload_hash": digest,
        "payload": payload,
    }
    # Another process may insert the same task at the same time: insert or ignore, then read the row that won.
    conn.execute(insert_into(conn)(tasks).values(row).on_conflict_do_nothing())
    return str(conn.execute(select(tasks.c.id).where(same)).scalar_one())


def submit(conn: Connection, spec: GroupSpec, name: str | None = None) -> Requested:
    """Add a group after those requested before. `spec.purpose` and `spec.ordinal` are ignored.

    If a group of the same `name` exists, returns it instead of adding another. Raises `StoreError` if that
    group has another task, size or sampling.
    """
    runs.lock(conn, spec.run_id)
    purpose = PURPOSE if name is None else f"{PURPOSE}/{name}"
    mine = (groups.c.run_id == spec.run_id) & (groups.c.purpose == purpose)
    if (
        name is not None
        and (group := conn.execute(select(groups).where(mine)).mappings().first()) is not None
    ):
        same = (group["task_id"], group["size"], group["sampling"]) == (
            spec.task_id,
            len(spec.harnesses),
            spec.sampling,
        )
        if not same:
            raise StoreError(
                f"There is a group {name!r} already, of another task, size or sampling. Choose another name."
            )
        return _of(conn, group["id"], new=False)
    highest = conn.execute(select(func.max(groups.c.ordinal)).where(mine)).scalar()
    ordinal = 0 if highest is None else highest + 1
    return _of(conn, rollouts.submit(conn, replace(spec, purpose=purpose, ordinal=ordinal)), new=True)


def _of(conn: Connection, group_id: str, *, new: bool) -> Requested:
    query = select(rollout_rows.c.id).where(rollout_rows.c.group_id == group_id, rollout_rows.c.attempt == 0)
    return Requested(group_id, tuple(conn.execute(query.order_by(rollout_rows.c.slot)).scalars()), new)
