"""Retention on both databases: what stays and why, what goes with a rollout, that the rest is as it was, and that
the space of removed rows is given back.
"""

import sqlite3
import time
from contextlib import closing

import pytest
from sqlalchemy import func, inspect, select, text, update

from harnessgym.errors import StoreError
from harnessgym.store import TraceStore, bodies, freezing, leases, policies, rewards, rollouts, runs
from harnessgym.store.bodies import BaseBody, split_body
from harnessgym.store.listing import RolloutFilter
from harnessgym.store.owned_rows import OWNED, owned
from harnessgym.store.retention import LEASE, Retention, plan, prune, vacuum
from harnessgym.store.rewards import RewardRow
from harnessgym.store.tables import groups, messages
from harnessgym.store.tables import rollouts as rollouts_table
from harnessgym.traces.verification.verify import verify
from tests.harnessgym.store.recorded_runs import (
    add_rollouts,
    begin_run,
    bodies_of,
    body_of,
    count,
    end_run,
    rows_of_everything,
)


@pytest.fixture
def recording(store):
    return begin_run(store)


def everything(**options):
    return Retention(-60.0, **options)


def rows_owned(store, ids):
    """How many rows of rollouts there are, by table."""
    found = {}
    for table in OWNED:
        query = select(func.count()).select_from(table).where(owned(table, ids))
        found[table.name] = store.read(lambda conn, query=query: conn.execute(query).scalar_one())
    return {name: number for name, number in found.items() if number}


def agreed(store):
    report = verify(store)
    assert report.ok, report.findings
    return report.checked


def test_a_rollout_goes_with_all_its_rows_and_others_stay_as_they_are(store, recording):
    _, old, _ = add_rollouts(recording, 2, "before_greedy")
    _, kept, sent = add_rollouts(recording, 2, "after_greedy")
    end_run(recording)
    before = rows_of_everything(store)
    own = rows_owned(store, old)
    assert own == {"sessions": 2, "segments": 8, "calls": 4, "bodies": 4, "rewards": 2}

    found = plan(store.url, everything(wanted=RolloutFilter(purpose="before_greedy")))
    assert rows_of_everything(store) == before
    pruned = prune(store.url, everything(wanted=RolloutFilter(purpose="before_greedy")))
    assert pruned.rows == own | {"messages": 4, "rollouts": 2, "groups": 1}
    assert (found.rollouts, found.bytes) == (pruned.rollouts, pruned.bytes) == (2, found.bytes)
    assert found.rows == {name: number for name, number in pruned.rows.items() if name != "groups"}

    after = rows_of_everything(store)
    for table, rows in after.items():
        assert rows == {key: before[table][key] for key in rows}
    assert len(before["rollouts"]) - len(after["rollouts"]) == 2
    assert bodies_of(store, sent) == sent
    assert agreed(store).sessions == 2
    assert rows_owned(store, kept) == own


def test_the_bytes_are_those_of_tokens_and_texts(store, recording):
    add_rollouts(recording, 1, turns=1)
    end_run(recording)
    sizes = (
        "SELECT sum(length(ids)) + sum(coalesce(length(logprobs), 0)) FROM segments",
        ("SELECT sum(length(remainder)) FROM bodies"),
    )
    tokens, rest = (
        store.read(lambda conn, query=query: conn.execute(text(query)).scalar_one()) for query in sizes
    )
    texts = sum(
        len(body.encode())
        for body in store.read(lambda conn: conn.execute(select(messages.c.body)).scalars().all())
    )
    assert prune(store.url, everything()).bytes == tokens + rest + texts > 400


def test_what_stays_and_why(store, recording):
    _, (frozen, loose), _ = add_rollouts(recording, 2, "before_greedy")
    group_id, trained, _ = add_rollouts(recording, 2)
    recording.train(group_id, trained, 1, 0)
    add_rollouts(recording, 1, finish=False)
    before = rows_of_everything(store)
    store.write(lambda conn: freezing.freeze(conn, [frozen]))
    pruned = prune(store.url, everything())
    assert (pruned.rollouts, pruned.rows) == (0, {})
    assert pruned.kept == {"frozen": 1, "not finished": 1, "of a run that is not done": 3}
    end_run(recording)
    pruned = prune(store.url, everything())
    assert pruned.kept == {"frozen": 1, "not finished": 1, "in the ledger": 2}
    assert (pruned.rollouts, pruned.rows["rollouts"]) == (1, 1)
    assert set(before["rollouts"]) - set(rows_of_everything(store)["rollouts"]) == {loose}
    store.write(lambda conn: runs.set_status(conn, recording.run_id, "training"))
    agreed(store)


def test_young_ones_stay(store, recording):
    _, (old, young), _ = add_rollouts(recording)
    end_run(recording)
    aged = update(rollouts_table).where(rollouts_table.c.id == old).values(ended_at=time.time() - 7_200)
    store.write(lambda conn: conn.execute(aged))
    assert prune(store.url, Retention(3_600.0)).rollouts == 1
    assert store.read(lambda conn: conn.execute(select(rollouts_table.c.id)).scalars().all()) == [young]
    assert count(store, groups) == 1


def test_the_conditions_of_the_list_hold(store, recording):
    _, (good, _), _ = add_rollouts(recording)
    end_run(recording)
    note = RewardRow(good, "rollout", good, "process.x", 0.0, "test")
    store.write(lambda conn: rewards.add(conn, note))
    better = text("UPDATE rewards SET value = 5 WHERE rollout_id = :id AND channel = 'reward'")
    store.write(lambda conn: conn.execute(better, {"id": good}))
    assert plan(store.url, everything(wanted=RolloutFilter(min_reward=2.0))).rollouts == 1
    assert prune(store.url, everything(wanted=RolloutFilter(max_reward=2.0))).rollouts == 1
    assert store.read(lambda conn: conn.execute(select(rollouts_table.c.id)).scalars().all()) == [good]


def test_what_was_trained_goes_only_when_asked_and_with_its_ledger(store, recording):
    group_id, ids, _ = add_rollouts(recording)
    recording.train(group_id, ids, 1, 0)
    end_run(recording)
    assert agreed(store).trained_tokens == 16
    assert prune(store.url, everything()).rollouts == 0
    pruned = prune(store.url, everything(trained=True))
    assert (pruned.rollouts, pruned.rows["trained"], pruned.rows["advantages"]) == (2, 2, 4)
    assert (agreed(store).trained_tokens, count(store, groups)) == (0, 0)
    versions = store.read(lambda conn: policies.versions(conn, recording.policy_id))
    assert [item.version for item in versions] == [0, 1]


def test_what_only_orphaned_versions_were_trained_on_may_go(store, recording):
    group_id, ids, _ = add_rollouts(recording)
    recording.train(group_id, ids, 1, 0)
    store.write(lambda conn: policies.orphan_after(conn, recording.policy_id, 0))
    end_run(recording)
    assert prune(store.url, everything()).rollouts == 2


def test_a_run_that_is_not_done_is_given_up_only_where_nobody_holds_it(store, recording):
    add_rollouts(recording, 2, "before_greedy")
    _, running, _ = add_rollouts(recording, 1, finish=False)
    assert prune(store.url, everything(abandoned=True)).rollouts == 0
    store.write(lambda conn: rollouts.expire(conn, recording.run_id))
    pruned = prune(store.url, everything(abandoned=True))
    assert (pruned.rollouts, pruned.kept) == (2, {"not finished": 1})
    assert rows_owned(store, running)["calls"] == 2


def test_bodies_alone(store, recording):
    group_id, ids, sent = add_rollouts(recording)
    recording.train(group_id, ids, 1, 0)
    _, _, theirs = add_rollouts(recording, 1, "wrap", finish=False)
    before, checked = rows_of_everything(store), agreed(store)
    found = plan(store.url, everything(bodies_only=True))
    pruned = prune(store.url, everything(bodies_only=True))
    assert pruned == found
    assert (pruned.rollouts, pruned.rows) == (2, {"bodies": 4, "messages": 4})
    assert pruned.kept == {"not finished": 1}
    after = rows_of_everything(store)
    assert {table for table in after if after[table] != before[table]} == {"bodies", "messages"}
    assert bodies_of(store, theirs) == theirs
    assert set(bodies_of(store, sent).values()) == {None}
    assert agreed(store) == checked
    assert prune(store.url, everything(bodies_only=True)).rollouts == 0


def test_a_body_that_another_rollouts_body_begins_with_stays(store, recording):
    _, (old, young), sent = add_rollouts(recording, 2, turns=1)
    calls = list(sent)
    longer = body_of(f"{old} 0", "and more")
    parts = split_body(longer)
    session = recording.session(young)
    later = session.call()
    split = type(parts)(parts.parts[2:], parts.remainder, BaseBody(calls[0], 2))
    store.write(lambda conn: bodies.add(conn, later, "request", split))
    end_run(recording)
    held = {"what bodies of others begin with": 1}
    assert plan(store.url, everything(bodies_only=True)).kept == held
    pruned = prune(store.url, everything())
    assert (pruned.rollouts, pruned.kept) == (1, held)
    assert bodies_of(store, [calls[0], later]) == {calls[0]: sent[calls[0]], later: None}
    assert prune(store.url, everything()).rollouts == 1
    assert count(store, rollouts_table) == count(store, messages) == 0


def test_an_interrupted_one_goes_on(store, recording):
    add_rollouts(recording)
    end_run(recording)

    def interrupt(at):
        def told(what, done, total):
            if what == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            prune(store.url, everything(), told)

    interrupt("rollouts")
    assert count(store, rollouts_table) == 2
    interrupt("texts")
    assert (count(store, rollouts_table), count(store, messages)) == (0, 6)
    pruned = prune(store.url, everything())
    assert (pruned.rollouts, pruned.rows) == (0, {"messages": 6})
    assert count(store, messages) == 0


def test_a_text_that_is_used_again_meanwhile_stays(store, recording):
    _, _, sent = add_rollouts(recording, 1, turns=1)
    end_run(recording)
    other = begin_run(store, "other", seed=8)
    (body,) = sent.values()
    written = {}

    def told(what, done, total):
        """Behind the search, and before the first texts go."""
        if what == "texts" and total > 1 and not written:
            _, (rollout_id,) = other.group(1, "wrap")
            call_id = other.session(rollout_id).call()
            store.write(lambda conn: bodies.add(conn, call_id, "request", split_body(body)))
            written[call_id] = body

    pruned = prune(store.url, everything(), told)
    assert (pruned.rollouts, pruned.rows.get("messages", 0), len(written)) == (1, 0, 1)
    assert bodies_of(store, written) == written


def test_a_rollout_that_is_frozen_meanwhile_stays(store, recording):
    _, (one, _), _ = add_rollouts(recording)
    end_run(recording)

    def told(what, done, total):
        if what == "rollouts":
            store.write(lambda conn: freezing.freeze(conn, [one]))

    assert prune(store.url, everything(), told).rollouts == 1
    assert store.read(lambda conn: conn.execute(select(rollouts_table.c.id)).scalars().all()) == [one]


def test_one_at_a_time(store, recording):
    add_rollouts(recording)
    end_run(recording)
    assert store.write(lambda conn: leases.acquire(conn, LEASE, "host:7", 60.0))
    with pytest.raises(StoreError, match="Process host:7 is removing rows"):
        prune(store.url, everything())
    store.write(lambda conn: leases.release(conn, LEASE, "host:7"))
    assert prune(store.url, everything()).rollouts == 2
    assert store.read(lambda conn: leases.holder_of(conn, LEASE)) is None


def test_nothing_is_left_in_the_schema(store, recording):
    def indexes():
        return store.read(
            lambda conn: sorted(
                str(item["name"])
                for table in inspect(conn).get_table_names()
                for item in inspect(conn).get_indexes(table)
            )
        )

    add_rollouts(recording)
    end_run(recording)
    before = indexes()
    prune(store.url, everything())
    assert indexes() == before


def test_an_empty_database_has_nothing_to_go(store):
    assert plan(store.url, everything()).rows == prune(store.url, everything()).rows == {}


@pytest.fixture
def emptied(store):
    """A database that held a megabyte more."""
    store.write(lambda conn: conn.exec_driver_sql("INSERT INTO messages VALUES ('a', 'b')"))
    recording = begin_run(store)
    _, (rollout_id,), _ = add_rollouts(recording, 1, turns=1)
    session = recording.session(rollout_id)
    for _ in range(4):
        session.call(prompt=140_000)
    end_run(recording)
    prune(store.url, Retention(-60.0))
    store.close()
    return store.url


def test_space_is_given_back(emptied, kind):
    found = vacuum(emptied, full=True)
    assert found.before - found.after > 1_000_000
    TraceStore.open(emptied).close()


def test_postgresql_keeps_its_files_unless_it_is_asked(emptied, kind):
    found = vacuum(emptied)
    if kind == "postgresql":
        assert found.after > found.before - 1_000_000
    else:
        assert found.before - found.after > 1_000_000


def test_a_file_that_others_write_to(tmp_path):
    path = tmp_path / "traces.db"
    TraceStore.create(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            StoreError, match=r"Other processes write to .*traces.db: nothing was changed. End them"
        ):
            vacuum(f"sqlite:///{path}?timeout=0.2")
        other.execute("ROLLBACK")
    vacuum(f"sqlite:///{path}?timeout=0.2")


def test_a_file_that_others_read(tmp_path):
    path = tmp_path / "traces.db"
    TraceStore.create(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM runs").fetchall()
        with pytest.raises(StoreError, match=r"Other processes read .*traces.db: .*End them"):
            vacuum(f"sqlite:///{path}?timeout=0.2")


def test_not_while_rows_are_removed(store):
    store.write(lambda conn: leases.acquire(conn, LEASE, "host:7", 60.0))
    with pytest.raises(StoreError, match="Process host:7 is removing rows"):
        vacuum(store.url)
