"""Runs in a store of either kind, with bodies, and everything that a database has of them."""

import random

from sqlalchemy import select

from harnessgym.store import TraceStore, bodies, policies, runs
from harnessgym.store.bodies import BaseBody, SplitBody, split_body
from harnessgym.store.run_copy import reading
from harnessgym.store.tables import metadata
from harnessgym.task import Task
from tests.harnessgym.traces.conftest import Recording

SYSTEM = '{"role": "system", "content": "You are ü."}'


def begin_run(store, name="demo", seed=7):
    """A run with versions 0 and, unpublished, its groups."""
    config = {"trainer": {"max_staleness": 1}}
    run_id = store.write(lambda conn: runs.add(conn, name, config, "test", "training"))
    policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
    task_id = store.write(lambda conn: runs.add_task(conn, "lookup", Task("t0", "Find it.")))
    recording = Recording(store, run_id, policy_id, task_id, random.Random(seed))
    recording.publish(0)
    return recording


def body_of(*said, options="x"):
    """A request; its options are long enough to be a text of their own."""
    messages = ", ".join((SYSTEM, *(f'{{"role": "user", "content": "{text}"}}' for text in said)))
    return f'{{"model": "m", "messages": [{messages}], "options": "{options * 400}"}}'.encode()


def add_rollouts(recording, size=2, purpose="train", *, finish=True, turns=2):
    """A group whose rollouts said `turns` things in one session, each request beginning with the one
    before. Bodies by call.
    """
    group_id, ids = recording.group(size, purpose)
    sent = {}
    for rollout_id in ids:
        session, base, after, said = recording.session(rollout_id), None, None, []
        for turn in range(turns):
            said.append(f"{rollout_id} {turn}")
            after = session.call(after=after)
            body = body_of(*said)
            whole = split_body(body)
            split = SplitBody(whole.parts[turn + 1 :], whole.remainder, base) if base else whole
            recording.store.write(
                lambda conn, call=after, split=split: bodies.add(conn, call, "request", split)
            )
            base, sent[after] = BaseBody(after, turn + 2), body
        session.seal()
    if finish:
        recording.finish(ids)
    return group_id, ids, sent


def end_run(recording):
    recording.store.write(lambda conn: runs.set_status(conn, recording.run_id, "done"))


def rows_of_everything(source):
    """Every row as it is stored, by table and primary key, but for workers and leases."""

    def read(conn):
        out = {}
        for table in metadata.sorted_tables:
            if table.name not in ("workers", "leases"):
                (key,) = table.primary_key.columns
                out[table.name] = {
                    row[key.name]: dict(row) for row in conn.execute(reading(table)).mappings()
                }
        return out

    if isinstance(source, TraceStore):
        return source.read(read)
    with TraceStore.open(source) as store:
        return store.read(read)


def bodies_of(store, calls):
    return {call: store.read(lambda conn, call=call: bodies.of_call(conn, call)) for call in calls}


def count(store, table):
    return len(store.read(lambda conn: conn.execute(select(table)).all()))
