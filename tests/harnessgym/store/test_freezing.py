"""A frozen rollout refuses every change to its rows, on both databases; what its run still needs is not
frozen.
"""

import pytest
from sqlalchemy import text

from harnessgym.errors import StoreError
from harnessgym.outcome.failure import StopReason
from harnessgym.store import freezing, removal, rollouts, sessions
from harnessgym.store.listing import RolloutFilter, newest_rollouts
from harnessgym.store.rollouts import RolloutOutcome
from tests.harnessgym.store.recorded_runs import add_rollouts, begin_run, end_run, rows_of_everything

WRITES = [
    "UPDATE rollouts SET verdict = 'tampered' WHERE id = :rollout",
    "DELETE FROM rollouts WHERE id = :rollout",
    "UPDATE sessions SET sealed = FALSE WHERE rollout_id = :rollout",
    "DELETE FROM sessions WHERE rollout_id = :rollout",
    "UPDATE calls SET status = 'error' WHERE rollout_id = :rollout",
    "DELETE FROM calls WHERE rollout_id = :rollout",
    (
        "UPDATE segments SET length = 0 WHERE session_id IN (SELECT id FROM sessions WHERE rollout_id = "
        ":rollout)"
    ),
    "DELETE FROM segments WHERE session_id IN (SELECT id FROM sessions WHERE rollout_id = :rollout)",
    (
        "UPDATE bodies SET message_hashes = '[]' WHERE call_id IN (SELECT id FROM calls WHERE rollout_id = "
        ":rollout)"
    ),
    "DELETE FROM bodies WHERE call_id IN (SELECT id FROM calls WHERE rollout_id = :rollout)",
    "UPDATE rewards SET value = 0 WHERE rollout_id = :rollout",
    "DELETE FROM rewards WHERE rollout_id = :rollout",
    (
        "INSERT INTO rewards (id, rollout_id, unit, target, channel, value, source, created_at) "
        "VALUES ('r', :rollout, 'rollout', 'x', 'x', 1, 'x', 1)"
    ),
    "INSERT INTO agents (id, rollout_id, name, created_at) VALUES ('a', :rollout, 'x', 1)",
    (
        "INSERT INTO events (id, rollout_id, t, kind, attributes, created_at) VALUES ('e', :rollout, 1, "
        "'message', '{}', 1)"
    ),
    (
        'INSERT INTO exclusions (id, rollout_id, call_id, start, "end", reason, created_at) '
        "SELECT 'x', :rollout, id, 0, 1, 'x', 1 FROM calls WHERE rollout_id = :rollout LIMIT 1"
    ),
]


@pytest.fixture
def recording(store):
    return begin_run(store)


@pytest.fixture
def finished(recording):
    """Two rollouts of a run that is done."""
    _, ids, _ = add_rollouts(recording)
    end_run(recording)
    return ids


def write(store, statement, rollout_id):
    return store.write(lambda conn: conn.execute(text(statement), {"rollout": rollout_id}).rowcount)


@pytest.mark.parametrize("statement", WRITES, ids=lambda statement: " ".join(statement.split()[:3]))
def test_nothing_of_a_frozen_rollout_changes(store, finished, statement):
    frozen, other = finished
    assert store.write(lambda conn: freezing.freeze(conn, [frozen])) == 1
    before = rows_of_everything(store)
    with pytest.raises(StoreError, match=r"frozen: its trace cannot change. `harnessgym store thaw`"):
        write(store, statement, frozen)
    assert rows_of_everything(store) == before
    if statement.startswith(("UPDATE", "INSERT")):
        assert write(store, statement, other) >= 1
        store.write(lambda conn: freezing.thaw(conn, [frozen]))
        if statement.startswith("UPDATE"):
            assert write(store, statement, frozen) >= 1


def test_a_frozen_rollout_is_not_removed_until_it_is_thawed(store, finished):
    store.write(lambda conn: freezing.freeze(conn, finished))
    with pytest.raises(StoreError, match="frozen"):
        store.write(lambda conn: removal.remove(conn, finished[:1]))
    assert store.write(lambda conn: freezing.thaw(conn, finished)) == 2
    assert store.write(lambda conn: removal.remove(conn, finished[:1])).rows["calls"] == 2


def test_freezing_seals(store, recording):
    _, (rollout_id,) = recording.group(1, "wrap")
    session = recording.session(rollout_id)
    session.call()
    recording.finish([rollout_id])
    assert not store.read(lambda conn: sessions.get(conn, session.id)).sealed
    store.write(lambda conn: freezing.freeze(conn, [rollout_id]))
    found = store.read(lambda conn: sessions.get(conn, session.id))
    assert (found.sealed, found.calls_at_seal) == (True, 1)


def test_freezing_again_changes_nothing(store, finished):
    assert store.write(lambda conn: freezing.freeze(conn, finished[:1])) == 1
    assert store.write(lambda conn: freezing.freeze(conn, finished)) == 1
    frozen = store.read(lambda conn: newest_rollouts(conn, -1, RolloutFilter(frozen=True)))
    assert {row.id for row in frozen} == set(finished)
    assert store.write(lambda conn: freezing.thaw(conn, finished[:1])) == 1
    assert store.write(lambda conn: freezing.thaw(conn, finished)) == 1


def test_what_its_run_still_writes_to_is_not_frozen(store, recording):
    def refused(ids, why):
        with pytest.raises(StoreError, match=f"{why}.*Nothing was frozen"):
            store.write(lambda conn: freezing.freeze(conn, ids))
        assert store.read(lambda conn: newest_rollouts(conn, -1, RolloutFilter(frozen=True))) == []

    _, evaluated, _ = add_rollouts(recording, 1, "before_greedy")
    group_id, ids, _ = add_rollouts(recording, 3, finish=False)
    refused([*evaluated, *ids], "3 of the rollouts are not finished")
    recording.finish(ids[:2])
    refused(ids[:2], "groups of which others are not finished")
    recording.finish(ids[2:])
    refused([*evaluated, *ids], "waiting to be trained")
    recording.train(group_id, ids, 1, 0)
    assert store.write(lambda conn: freezing.freeze(conn, [*evaluated, *ids])) == 4


def test_the_run_goes_on_beside_a_frozen_rollout(store, recording):
    """A group that is dropped excludes the tokens of all its members: none of them can have been frozen
    before.
    """
    _, ids, _ = add_rollouts(recording, 3, finish=False)
    recording.finish(ids[:1])
    with pytest.raises(StoreError, match="groups of which others are not finished"):
        store.write(lambda conn: freezing.freeze(conn, ids[:1]))
    for rollout_id in ids[1:]:
        outcome = RolloutOutcome(rollout_id, StopReason.SANDBOX_ERROR, "infrastructure_error")
        assert store.write(lambda conn, outcome=outcome: rollouts.fail(conn, outcome, 1))
    assert store.write(lambda conn: freezing.freeze(conn, ids)) == 3


def test_an_unknown_rollout(store, finished):
    with pytest.raises(StoreError, match="no rollout 'nothing'"):
        store.write(lambda conn: freezing.freeze(conn, [*finished, "nothing"]))
    assert store.read(lambda conn: newest_rollouts(conn, -1, RolloutFilter(frozen=True))) == []


COLUMNS = {
    "segments": "id, session_id, kind, parent_id, hash, length, ids, logprobs, created_at",
    "bodies": (
        "id, call_id, direction, message_hashes, remainder, created_at, base_id, base_elements, "
        "remainder_hash"
    ),
}
OF = {
    "segments": "session_id IN (SELECT id FROM sessions WHERE rollout_id = :rollout)",
    "bodies": "call_id IN (SELECT id FROM calls WHERE rollout_id = :rollout)",
}
INTO = [
    "UPDATE sessions SET rollout_id = :rollout WHERE rollout_id <> :rollout",
    "UPDATE calls SET rollout_id = :rollout WHERE rollout_id <> :rollout",
    "UPDATE rewards SET rollout_id = :rollout, channel = 'moved' WHERE rollout_id <> :rollout",
    (
        "UPDATE segments SET session_id = (SELECT min(id) FROM sessions WHERE rollout_id = :rollout) "
        "WHERE session_id NOT IN (SELECT id FROM sessions WHERE rollout_id = :rollout)"
    ),
    (
        "UPDATE bodies SET call_id = (SELECT min(id) FROM calls WHERE rollout_id = :rollout) "
        "WHERE call_id NOT IN (SELECT id FROM calls WHERE rollout_id = :rollout)"
    ),
    *(
        f"INSERT INTO {table} ({columns}) SELECT 'new', {columns.partition(', ')[2]} FROM {table} WHERE {OF[table]} LIMIT 1"
        for table, columns in COLUMNS.items()
    ),
]
REPLACED = [
    *(f"INSERT OR REPLACE INTO {table} SELECT * FROM {table} WHERE {of}" for table, of in OF.items()),
    "INSERT OR REPLACE INTO rollouts SELECT * FROM rollouts WHERE id = :rollout",
    (
        "INSERT OR REPLACE INTO segments SELECT f.id, o.session_id, o.kind, o.parent_id, o.hash, o.length, "
        "o.ids, o.logprobs, "
        "o.created_at, o.copies FROM segments o, segments f WHERE f.session_id IN (SELECT id FROM sessions WHERE "
        "rollout_id = :rollout) "
        "AND o.session_id NOT IN (SELECT id FROM sessions WHERE rollout_id = :rollout) LIMIT 1"
    ),
    (
        "UPDATE OR REPLACE rewards SET id = (SELECT id FROM rewards WHERE rollout_id = :rollout) WHERE "
        "rollout_id <> :rollout"
    ),
    (
        "UPDATE OR REPLACE sessions SET key_hash = (SELECT key_hash FROM sessions WHERE rollout_id = "
        ":rollout) "
        "WHERE rollout_id <> :rollout"
    ),
]


@pytest.mark.parametrize("statement", INTO, ids=lambda statement: " ".join(statement.split()[:3]))
def test_nothing_is_added_to_a_frozen_rollout(store, finished, statement):
    refused(store, finished[0], statement)
    store.write(lambda conn: freezing.thaw(conn, finished[:1]))
    assert write(store, statement, finished[0]) >= 1


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("statement", REPLACED, ids=lambda statement: " ".join(statement.split()[:5]))
def test_nothing_takes_the_place_of_what_is_frozen(store, finished, statement):
    refused(store, finished[0], statement)


def refused(store, rollout_id, statement):
    store.write(lambda conn: freezing.freeze(conn, [rollout_id]))
    before = rows_of_everything(store)
    with pytest.raises(StoreError, match="frozen: its trace cannot change"):
        write(store, statement, rollout_id)
    assert rows_of_everything(store) == before


def test_a_stored_text_stays_as_it_is(store, finished):
    before = rows_of_everything(store)
    statements = ["UPDATE messages SET body = 'other'"]
    if store.url.startswith("sqlite"):
        statements.append("INSERT OR REPLACE INTO messages SELECT hash, 'other' FROM messages")
    for statement in statements:
        with pytest.raises(StoreError, match="known by its hash"):
            write(store, statement, finished[0])
    assert rows_of_everything(store) == before
