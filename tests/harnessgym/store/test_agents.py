"""Agents of sessions: their order, their parents, and that a session knows each once."""

import pytest
from sqlalchemy import update

from harnessgym.errors import StoreError
from harnessgym.store import agents, tables
from harnessgym.store.agents import AgentRow
from harnessgym.store.tables import new_id
from tests.harnessgym.store.recorded_runs import begin_run


@pytest.fixture
def kind():
    """One table and one query, which are the same for PostgreSQL."""
    return "sqlite"


@pytest.fixture
def sessions(store):
    """The ids of two sessions of one rollout."""
    recording = begin_run(store)
    _, (rollout_id,) = recording.group(1)
    return [recording.session(rollout_id) for _ in range(2)]


def add(store, session, key, parent=None):
    row = AgentRow(new_id(), session.rollout_id, session.id, key, f"agent {key}", parent, "header")
    store.write(lambda conn: agents.add(conn, row))
    return row


def of_sessions(store, *sessions):
    return store.read(lambda conn: agents.of_sessions(conn, [session.id for session in sessions]))


def test_agents_come_in_the_order_they_appeared(store, sessions):
    first, second = sessions
    main = add(store, first, "main")
    other = add(store, second, "main")
    child = add(store, first, "child", main.id)
    assert of_sessions(store, first) == [main, child]
    assert of_sessions(store, second, first) == [main, other, child]
    assert of_sessions(store) == []
    earlier = update(tables.agents).where(tables.agents.c.id == child.id).values(created_at=1.0)
    store.write(lambda conn: conn.execute(earlier))
    assert of_sessions(store, first) == [child, main]


def test_a_session_knows_a_key_once_and_another_session_may_know_it_too(store, sessions):
    first, second = sessions
    row = add(store, first, "main")
    with pytest.raises(StoreError, match="UNIQUE constraint failed: agents"):
        add(store, first, "main")
    other = add(store, second, "main")
    assert of_sessions(store, first, second) == [row, other]


def test_a_parent_must_exist(store, sessions):
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        add(store, sessions[0], "child", "nowhere")
    assert of_sessions(store, *sessions) == []
