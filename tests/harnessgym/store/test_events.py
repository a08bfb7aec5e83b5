"""Events and edges: written together, read back whole, refused where their ends are not there."""

import pytest
from sqlalchemy import select

from harnessgym.errors import StoreError
from harnessgym.store import agents, edges, events, new_id, sessions
from harnessgym.store.agents import AgentRow
from harnessgym.store.edges import EdgeRow
from harnessgym.store.events import EventRow
from harnessgym.store.tables import agents as agents_table


@pytest.fixture
def add_agent(store, rollout_id):
    """Makes agents of one session."""
    session = store.write(lambda conn: sessions.add(conn, rollout_id, new_id(), sampling={}).id)

    def add(name, parent=None):
        row = AgentRow(new_id(), rollout_id, session, name, name, parent, "content")
        store.write(lambda conn: agents.add(conn, row))
        return row.id

    return add


def test_events_and_edges_come_back_as_they_were(store, rollout_id, add_agent):
    main, child = add_agent("main"), add_agent("child")
    rows = [
        EventRow(
            rollout_id,
            "message",
            {"text": 'Ü "\n'},
            2.5,
            None,
            main,
            "arguments",
            0.95,
            target_agent_id=child,
        ),
        EventRow(rollout_id, "safety_event", {}, 1.0, source="otlp", span_id="7"),
    ]
    drawn = [EdgeRow(rollout_id, "safety_flow", rows[1].id, rows[0].id, "order", 0.5)]
    store.write(lambda conn: (events.add_many(conn, rows), edges.add_many(conn, drawn)))
    assert store.read(lambda conn: events.of_rollout(conn, rollout_id)) == [rows[1], rows[0]]
    assert store.read(lambda conn: events.of_rollout(conn, rollout_id, "message")) == [rows[0]]
    assert store.read(lambda conn: edges.of_rollout(conn, rollout_id)) == drawn
    assert store.read(lambda conn: edges.of_rollout(conn, rollout_id, "spawn")) == []


def test_a_spawn_says_of_its_agent_who_started_it(store, rollout_id, add_agent):
    main, other = add_agent("main"), add_agent("other")
    child, told = add_agent("child"), add_agent("told", other)
    first = EventRow(rollout_id, "spawn", agent_id=main, target_agent_id=child)
    second = EventRow(rollout_id, "spawn", agent_id=main, target_agent_id=told)
    again = EventRow(rollout_id, "spawn", agent_id=other, target_agent_id=child)
    store.write(lambda conn: events.add_many(conn, [first, second, again]))
    query = select(agents_table.c.id, agents_table.c.parent_agent_id, agents_table.c.spawn_event_id)
    found = {
        row.id: (row.parent_agent_id, row.spawn_event_id)
        for row in store.read(lambda conn: conn.execute(query).all())
    }
    assert found == {
        main: (None, None),
        other: (None, None),
        child: (main, first.id),
        told: (other, second.id),
    }


def test_an_edge_without_its_events_is_refused(store, rollout_id):
    event = EventRow(rollout_id, "aggregate")
    store.write(lambda conn: events.add(conn, event))
    with pytest.raises(StoreError):
        store.write(lambda conn: edges.add_many(conn, [EdgeRow(rollout_id, "aggregate", event.id, new_id())]))
