"""The graph of a rollout, from rows that the store's own functions and tables wrote."""

from typing import Any

import pytest
from sqlalchemy import insert

from harnessgym.errors import StoreError
from harnessgym.store import new_id
from harnessgym.store.tables import agents, calls, edges, events
from harnessgym.traces.graph import Edge, Graph, graph


def read(recording, rollout_id: str) -> Graph:
    return recording.store.read(lambda conn: graph(conn, rollout_id))


def add(recording, table, **values: Any) -> str:
    row_id = values.setdefault("id", new_id())
    recording.store.write(lambda conn: conn.execute(insert(table).values(**values)))
    return row_id


def two_agents(recording) -> tuple[str, list[str], list[str]]:
    """A rollout, its agents, and their four calls in turn."""
    _, (rollout_id, _) = recording.group()
    session = recording.session(rollout_id)
    names = [
        add(recording, agents, rollout_id=rollout_id, name=name, session_id=session.id, key=name)
        for name in "ab"
    ]
    made = [session.call() for _ in range(4)]
    for at, call_id in enumerate(made):
        values = {"agent_id": names[at % 2], "created_at": 10.0 + at}
        recording.store.write(
            lambda conn, of=call_id, to=values: conn.execute(
                calls.update().where(calls.c.id == of).values(to)
            )
        )
    return rollout_id, names, made


def test_calls_are_events_and_temporal_edges_join_those_of_an_agent(recording):
    rollout_id, names, made = two_agents(recording)
    found = read(recording, rollout_id)
    assert [event.id for event in found.events] == made
    assert {event.kind for event in found.events} == {"llm_call"}
    assert [event.agent_id for event in found.events] == [names[0], names[1]] * 2
    assert set(found.edges) == {Edge("temporal", made[0], made[2]), Edge("temporal", made[1], made[3])}
    assert [agent.name for agent in found.agents] == ["a", "b"]
    assert found.calls[made[0]].completion_len == 4


def test_stored_events_and_edges_are_read_as_they_are(recording):
    rollout_id, names, made = two_agents(recording)
    common = {"rollout_id": rollout_id, "created_at": 0.0, "source": "otlp"}
    about = {
        "t": 10.5,
        "kind": "tool_call",
        "attributes": {"tool": "find"},
        "evidence": "name",
        "confidence": 0.5,
    }
    called = add(recording, events, agent_id=names[0], call_id=made[0], span_id="s1", **common, **about)
    spoken = {"t": 10.0, "kind": "llm_call", "attributes": {"x": 1}}
    add(recording, events, id=made[0], agent_id=names[0], call_id=made[0], **common, **spoken)
    ends = {"source_event_id": made[0], "target_event_id": called}
    add(
        recording,
        edges,
        rollout_id=rollout_id,
        kind="causal",
        evidence="e",
        confidence=0.9,
        created_at=0.0,
        **ends,
    )
    found = read(recording, rollout_id)
    assert [event.id for event in found.events] == [made[0], called, *made[1:]]
    assert found.events[0].attributes == {"x": 1}
    (event,) = found.of_kind("tool_call")
    assert (event.attributes, event.confidence, event.source, event.span_id) == (
        {"tool": "find"},
        0.5,
        "otlp",
        "s1",
    )
    assert Edge("causal", made[0], called, "e", 0.9) in found.edges
    assert len(found.edges) == 3


def test_rewards_and_the_rollout_itself_are_in_it(recording):
    group_id, rollout_ids = recording.group()
    recording.finish(rollout_ids)
    found = read(recording, rollout_ids[0])
    (reward,) = found.rewards
    assert (reward.unit, reward.target, reward.channel, reward.value) == (
        "rollout",
        rollout_ids[0],
        "reward",
        1.0,
    )
    assert (found.rollout.group_id, found.rollout.task_set, found.rollout.task_key) == (
        group_id,
        "lookup",
        "t0",
    )
    assert (found.rollout.status, found.rollout.verdict, found.rollout.policy) == (
        "finished",
        "valid",
        "policy",
    )
    assert (found.events, found.edges) == ((), ())


def test_an_unknown_rollout_is_refused(recording):
    with pytest.raises(StoreError, match="no rollout 'nothing'"):
        read(recording, "nothing")
