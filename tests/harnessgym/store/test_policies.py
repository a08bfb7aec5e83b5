from dataclasses import replace

import pytest

from harnessgym.errors import StoreError
from harnessgym.store import policies, runs
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
