from dataclasses import replace
from pathlib import Path

import pytest

from harnessgym.errors import StoreError
from harnessgym.store import policies, runs, sessions
from harnessgym.store.policies import PolicyVersion


@pytest.fixture
def policy(store):
    run = store.write(lambda conn: runs.add(conn, "demo", {}, "test", "training"))
    return store.write(lambda conn: policies.register(conn, run, "policy"))


def version(number, **changes):
    row = PolicyVersion(
        number,
        number - 1 if number else None,
        "full",
        f"v{number}",
        number,
        "x",
        1,
        committed=True,
        orphaned=False,
    )
    return replace(row, **changes)


def publish(store, policy, *rows):
    for row in rows:
        store.write(lambda conn, row=row: policies.publish(conn, policy, row))


def test_a_policy_is_registered_once_per_run(store):
    run, other = (store.write(lambda conn: runs.add(conn, "demo", {}, "test", "training")) for _ in range(2))
    first = store.write(lambda conn: policies.register(conn, run, "a"))
    assert store.write(lambda conn: policies.register(conn, run, "a")) == first
    assert store.write(lambda conn: policies.register(conn, run, "b")) != first
    assert store.write(lambda conn: policies.register(conn, other, "a")) != first


def test_publishing_again_changes_nothing_and_another_under_the_number_is_refused(store, policy):
    publish(store, policy, version(0), version(0))
    assert store.read(lambda conn: policies.versions(conn, policy)) == [version(0)]
    with pytest.raises(StoreError, match=r"(?i)unique"):
        publish(store, policy, version(0, checksum="y"))


def test_the_latest_is_committed_and_not_orphaned(store, policy):
    assert store.read(lambda conn: policies.latest(conn, policy)) is None
    publish(store, policy, version(0), version(1), version(2, committed=False), version(3, orphaned=True))
    assert store.read(lambda conn: policies.latest(conn, policy)) == version(1)
    assert store.read(lambda conn: policies.get(conn, policy, 2)) == version(2, committed=False)
    assert store.read(lambda conn: policies.get(conn, policy, 9)) is None


def test_numbers_are_never_reused(store, policy):
    assert store.read(lambda conn: policies.next_version(conn, policy)) == 0
    publish(store, policy, *map(version, range(4)))
    assert store.write(lambda conn: policies.orphan_after(conn, policy, 1)) == 2
    assert store.read(lambda conn: policies.latest(conn, policy)) == version(1)
    assert store.read(lambda conn: policies.next_version(conn, policy)) == 4


def test_policies_of_a_run_come_in_order_of_registration(store):
    first, second = (
        store.write(lambda conn, name=name: runs.add(conn, name, {}, "test", "training")) for name in "ab"
    )
    ids = {
        name: store.write(lambda conn, name=name: policies.register(conn, first, name))
        for name in ("zeta", "alpha")
    }
    assert list(store.read(lambda conn: policies.of_run(conn, first)).items()) == list(ids.items())
    assert store.read(lambda conn: policies.of_run(conn, second)) == {}


def test_the_policies_of_a_rollout_are_those_of_its_run(store, rollout_id):
    session = store.write(lambda conn: sessions.add(conn, rollout_id, "key", sampling={})).id
    (run,) = store.read(runs.all_of)
    other = store.write(lambda conn: policies.register(conn, run.id, "other"))
    for name in (rollout_id, session):
        ids = store.read(lambda conn, name=name: policies.of_rollout(conn, name))
        assert list(ids) == ["policy", "other"]
        assert ids["other"] == other
    assert store.read(lambda conn: policies.of_rollout(conn, "nowhere")) == {}


def test_versions_are_listed_in_order_and_found_by_number(store, policy):
    rows = [version(0), version(1, committed=False), version(2, orphaned=True)]
    publish(store, policy, rows[2], rows[0], rows[1])
    assert store.read(lambda conn: policies.versions(conn, policy)) == rows
    assert store.read(lambda conn: policies.get(conn, policy, 2)) == rows[2]
    assert store.read(lambda conn: policies.get(conn, policy, 3)) is None
    assert store.read(lambda conn: policies.versions(conn, "another")) == []


def test_versions_that_moved_keep_their_names_and_all_else(store, policy):
    rows = [version(0, path="/old/versions/v0"), version(1, path="/new/v1"), version(2, path="/old/v2")]
    publish(store, policy, *rows)
    store.write(lambda conn: policies.relocate(conn, policy, Path("/new")))
    moved = [replace(row, path=f"/new/v{row.version}") for row in rows]
    assert store.read(lambda conn: policies.versions(conn, policy)) == moved
    store.write(lambda conn: policies.relocate(conn, policy, Path("/new")))
    assert store.read(lambda conn: policies.versions(conn, policy)) == moved


def test_only_later_versions_are_orphaned_and_counted_once(store, policy):
    publish(store, policy, version(0), version(1), version(2), version(3))
    assert store.write(lambda conn: policies.orphan_after(conn, policy, 1)) == 2
    assert store.write(lambda conn: policies.orphan_after(conn, policy, 0)) == 1
    assert store.write(lambda conn: policies.orphan_after(conn, policy, 0)) == 0
    orphaned = {row.version: row.orphaned for row in store.read(lambda conn: policies.versions(conn, policy))}
    assert orphaned == {0: False, 1: True, 2: True, 3: True}
