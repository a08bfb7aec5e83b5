"""Rows of one step: ids in order, defaults, and the evidence they carry."""

from harnessgym.traces.orchestration.rows import EdgeEvidence, OrchestrationRows


def test_ids_are_unique_and_sort_in_the_order_they_were_made():
    rows = OrchestrationRows("rollout", 1.0)
    names = [rows.event("message", "a", None, {}) for _ in range(300)]
    assert len(set(names)) == 300
    assert sorted(names) == names
    assert {len(name) for name in names} == {24}
    assert [event.id for event in rows.events] == names


def test_more_rows_than_one_random_part_can_number_stay_unique():
    rows = OrchestrationRows("rollout", 1.0)
    for _ in range((1 << 12) + 5):
        rows.edge("causal", "a", "b")
    assert len({edge.id for edge in rows.edges}) == (1 << 12) + 5


def test_an_event_has_the_steps_time_unless_it_has_its_own():
    rows = OrchestrationRows("rollout", 2.5)
    rows.event("spawn", "a", "call", {"tool": "Task"}, EdgeEvidence("content", 0.5), target="b")
    rows.event("return", "b", None, {}, t=1.5)
    spawn, back = rows.events
    assert (spawn.t, back.t) == (2.5, 1.5)
    assert (spawn.evidence, spawn.confidence, spawn.target_agent_id) == ("content", 0.5, "b")
    assert (back.evidence, back.confidence, back.target_agent_id) == (None, None, None)
    assert (spawn.rollout_id, spawn.call_id, spawn.attributes) == ("rollout", "call", {"tool": "Task"})


def test_the_event_of_a_call_has_its_id():
    rows = OrchestrationRows("rollout", 1.0)
    rows.call("call", None, {"n": 1})
    (event,) = rows.events
    assert (event.id, event.call_id, event.kind, event.agent_id) == ("call", "call", "llm_call", None)


def test_an_edge_is_observed_unless_evidence_says_otherwise():
    rows = OrchestrationRows("rollout", 1.0)
    rows.edge("spawn", "a", "b")
    rows.edge("message", "b", "c", EdgeEvidence("order", 0.6))
    assert [(edge.kind, edge.source_event_id, edge.target_event_id) for edge in rows.edges] == [
        ("spawn", "a", "b"),
        ("message", "b", "c"),
    ]
    assert [(edge.evidence, edge.confidence) for edge in rows.edges] == [(None, None), ("order", 0.6)]
