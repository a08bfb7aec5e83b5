import pytest
from sqlalchemy import text

from harnessgym.errors import StoreError
from harnessgym.store import sessions


def test_a_key_opens_its_session_and_is_not_stored(store, rollout_id):
    row = store.write(
        lambda conn: sessions.add(
            conn, rollout_id, "secret-key", sampling={"temperature": 1.0}, version_pin=3
        )
    )
    assert store.read(lambda conn: sessions.by_key(conn, "secret-key")) == row
    assert store.read(lambda conn: sessions.get(conn, row.id)) == row
    assert store.read(lambda conn: sessions.by_key(conn, "other")) is None
    assert (row.sampling, row.version_pin, row.sealed, row.history) == (
        {"temperature": 1.0},
        3,
        False,
        "keep",
    )
    stored = store.read(lambda conn: conn.execute(text("SELECT * FROM sessions")).one())
    assert sessions.hash_key("secret-key") in stored
    assert "secret-key" not in str(stored)


def test_two_sessions_cannot_share_a_key(store, rollout_id):
    store.write(lambda conn: sessions.add(conn, rollout_id, "k", sampling={}))
    with pytest.raises(StoreError, match="key_hash"):
        store.write(lambda conn: sessions.add(conn, rollout_id, "k", sampling={}))


def test_sealing_stores_the_number_of_calls_once(store, rollout_id, add_call):
    row = store.write(lambda conn: sessions.add(conn, rollout_id, "k", sampling={}))
    for ordinal in range(3):
        add_call(row.id, ordinal)
    assert store.write(lambda conn: sessions.seal(conn, row.id)) == 3
    add_call(row.id, 3)
    assert store.write(lambda conn: sessions.seal(conn, row.id)) == 3
    sealed = store.read(lambda conn: sessions.get(conn, row.id))
    assert (sealed.sealed, sealed.calls_at_seal) == (True, 3)


def test_two_calls_cannot_share_an_ordinal(store, rollout_id, add_call):
    row = store.write(lambda conn: sessions.add(conn, rollout_id, "k", sampling={}))
    add_call(row.id, 0)
    with pytest.raises(StoreError, match="ordinal"):
        add_call(row.id, 0)


def test_sessions_of_a_rollout_come_in_order_of_opening(store, rollout_id):
    opened = [
        store.write(lambda conn, n=number: sessions.add(conn, rollout_id, f"k{n}", sampling={})).id
        for number in range(5)
    ]
    assert store.read(lambda conn: sessions.of_rollout(conn, rollout_id)) == opened
