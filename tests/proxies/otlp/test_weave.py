"""Spans woven into what the proxy recorded: nothing twice, and the edges that only spans know."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from harnessgym.store.edges import EdgeRow
from harnessgym.store.events import EventRow
from proxies.otlp.conventions import MomentReport, SpanReport
from proxies.otlp.tree import SeenCall
from proxies.otlp.weave import weave

RUN = "r" * 24
A, B = "a" * 24, "b" * 24
"""Two agents."""


def call(number, agent, start, end=None):
    return SeenCall(f"{number:024x}", agent, start, start + 0.5 if end is None else end)


def span(span_id, deed, start, end, parent=None, **fields):
    return SpanReport(
        "t" * 32, span_id, parent, fields.pop("links", ()), deed, start, end, deed, f"is {deed}", **fields
    )


def llm(span_id, number, start, parent):
    return span(span_id, "llm", start, start + 0.6, parent, call_id=f"{number:024x}")


CALLS = [call(1, A, 1.0), call(2, B, 3.0), call(3, B, 4.0), call(4, A, 6.0)]
TEAM = [
    span("p", "agent", 0.5, 7.0, agent="planner"),
    llm("p1", 1, 0.9, "p"),
    span("w", "agent", 2.0, 5.0, "p", agent="worker", given="Go.", got="Done."),
    llm("w1", 2, 2.9, "w"),
    llm("w2", 3, 3.9, "w"),
    llm("p2", 4, 5.9, "p"),
]


def woven(reports, calls=(), events=(), edges=(), agents=()):
    found, drawn = weave(RUN, reports, calls, agents, events, edges)
    by_id = {event.id: event for event in (*events, *found)} | {
        one.id: EventRow(RUN, "llm_call", id=one.id) for one in calls
    }

    def named(event_id):
        return f"call {int(event_id, 16)}" if by_id[event_id].kind == "llm_call" else by_id[event_id].kind

    return (
        found,
        {(edge.kind, named(edge.source_event_id), named(edge.target_event_id)) for edge in drawn},
        drawn,
    )


def test_an_agents_span_is_its_spawn_and_its_return():
    found, edges, _ = woven(TEAM, CALLS)
    assert [
        (event.kind, event.agent_id, event.target_agent_id, event.attributes.get("channel"))
        for event in found
    ] == [
        ("spawn", A, B, None),
        ("message", A, B, "task"),
        ("return", B, A, None),
        ("message", B, A, "result"),
    ]
    assert edges == {
        ("causal", "call 1", "spawn"),
        ("spawn", "spawn", "call 2"),
        ("causal", "call 1", "message"),
        ("message", "message", "call 2"),
        ("return", "call 3", "return"),
        ("return", "return", "call 4"),
        ("causal", "call 3", "message"),
        ("message", "message", "call 4"),
    }
    assert all(
        event.source == "otlp" and event.span_id == "w" and event.confidence is None for event in found
    )


def test_what_the_traffic_showed_is_not_written_again():
    seen = [
        EventRow(RUN, "spawn", {}, 3.0, agent_id=A, target_agent_id=B),
        EventRow(RUN, "message", {"channel": "task"}, 3.0, agent_id=A, target_agent_id=B),
        EventRow(RUN, "return", {}, 6.0, agent_id=B, target_agent_id=A),
        EventRow(RUN, "message", {"channel": "result"}, 6.0, agent_id=B, target_agent_id=A),
    ]
    assert woven(TEAM, CALLS, seen)[:2] == ([], set())


def test_another_event_of_the_same_kind_is_no_reason_to_leave_one_out():
    seen = [
        EventRow(RUN, "spawn", {}, 3.0, agent_id=B, target_agent_id=A),
        EventRow(RUN, "return", {}, 6.0, agent_id=A),
    ]
    assert [event.kind for event in woven(TEAM, CALLS, seen)[0]] == ["spawn", "message", "return", "message"]


def test_the_order_of_spans_does_not_matter_and_weaving_again_adds_nothing():
    found, _, drawn = woven(TEAM, CALLS)
    for seed in range(5):
        mixed = random.Random(seed).sample(TEAM, len(TEAM))
        assert weave(RUN, mixed, CALLS, [], [], [])[0] == found
    assert weave(RUN, TEAM, CALLS, [], found, drawn) == ([], [])


def test_a_tool_joins_by_its_id_or_by_name_and_time():
    seen = [
        EventRow(RUN, "tool_call", {"tool": "get", "tool_call_id": "x1"}, 1.5, CALLS[0].id, A),
        EventRow(RUN, "tool_result", {"tool": "get", "tool_call_id": "x1"}, 2.0, CALLS[3].id, A),
    ]
    by_id = span("t", "tool", 1.6, 1.9, tool="get", tool_call_id="x1")
    by_name = span("t", "tool", 1.6, 1.9, "p", tool="get")
    other = span("t", "tool", 1.6, 1.9, "p", tool="put")
    assert woven([*TEAM[:2], by_id], CALLS, seen)[0] == []
    assert woven([*TEAM[:2], by_name], CALLS, seen)[0] == []
    found, edges, _ = woven([*TEAM[:2], other], CALLS, seen)
    assert [(event.kind, event.attributes["tool"], event.agent_id) for event in found] == [
        ("tool_call", "put", A),
        ("tool_result", "put", A),
    ]
    assert edges == {
        ("causal", "call 1", "tool_call"),
        ("tool_dependency", "tool_call", "tool_result"),
        ("tool_dependency", "tool_result", "call 4"),
    }


def test_an_agent_used_as_a_tool_is_started_by_the_tool_call():
    tool = span("t", "tool", 1.6, 5.5, "p", tool="ask", tool_call_id="x1")
    worker = span("w", "agent", 2.0, 5.0, "t", agent="worker")
    found, edges, _ = woven([TEAM[0], TEAM[1], tool, worker, TEAM[3]], CALLS)
    spawn = next(event for event in found if event.kind == "spawn")
    assert (spawn.attributes["tool_call_id"], spawn.agent_id, spawn.target_agent_id) == ("x1", A, B)
    assert ("causal", "tool_call", "spawn") in edges


def test_several_returns_to_one_call_are_aggregated():
    calls = [*CALLS, call(5, "c" * 24, 3.2)]
    other = [span("v", "agent", 2.1, 5.1, "p", agent="other"), llm("v1", 5, 3.1, "v")]
    found, edges, _ = woven([*TEAM, *other], calls)
    (gathered,) = [event for event in found if event.kind == "aggregate"]
    assert (gathered.agent_id, gathered.call_id, gathered.attributes) == (A, CALLS[3].id, {"returns": 2})
    assert {("aggregate", "return", "aggregate"), ("aggregate", "aggregate", "call 4")} <= edges


def test_an_agent_that_fails_does_not_return():
    found, edges, _ = woven(
        [*TEAM[:2], span("w", "agent", 2.0, 5.0, "p", agent="worker", error="crashed"), *TEAM[3:]], CALLS
    )
    assert [(event.kind, event.attributes.get("reason")) for event in found] == [
        ("spawn", None),
        ("despawn", "crashed"),
    ]
    assert {("causal", "call 3", "despawn"), ("causal", "despawn", "call 4")} <= edges


def test_refusals_guardrails_and_humans():
    tool = span("t", "tool", 1.6, 1.9, "p", tool="rm", refused=0.95, error="refused")
    guard = span("g", "guardrail", 1.7, 1.8, "t", tool="shell guard", refused=1.0)
    said = MomentReport("human_intervention", 1.75, {"approved": False}, "span event")
    human = span(
        "h", "step", 5.2, 5.4, "p", moments=(said, MomentReport("human_intervention", 5.3, {}, "name", 0.8))
    )
    found, edges, _ = woven([*TEAM[:2], tool, guard, human], CALLS)
    assert [(event.kind, event.confidence) for event in found if event.kind != "tool_call"] == [
        ("tool_result", None),
        ("safety_event", 0.95),
        ("safety_event", None),
        ("human_intervention", None),
        ("human_intervention", 0.8),
    ]
    assert {("safety_flow", "safety_event", "tool_call"), ("causal", "human_intervention", "call 4")} <= edges


def test_a_handoff_is_a_decision_and_a_message():
    handoff = span("h", "handoff", 1.6, 1.7, "p", target="worker")
    found, edges, _ = woven([*TEAM, handoff], CALLS)
    mine = [event for event in found if event.span_id == "h"]
    assert [(event.kind, event.agent_id, event.target_agent_id) for event in mine] == [
        ("orchestrator_decision", A, B),
        ("message", A, B),
    ]
    assert {
        ("causal", "call 1", "orchestrator_decision"),
        ("causal", "orchestrator_decision", "message"),
    } <= edges
    assert ("message", "message", "call 2") in edges


def test_events_name_themselves_and_links_are_causes():
    first = span("m", "message", 1.6, 1.7, "p", attributes={"to": "worker", "text": "x"})
    second = span("d", "orchestrator_decision", 5.5, 5.6, "p", links=("m",), attributes={"decision": "stop"})
    found, _, drawn = woven([*TEAM, first, second], CALLS)
    mine = {event.kind: event for event in found if event.span_id in ("m", "d")}
    assert mine["message"].attributes == {"to": "worker", "text": "x", "channel": "peer"}
    assert (mine["message"].agent_id, mine["message"].target_agent_id) == (A, B)
    pairs = {(edge.source_event_id, edge.target_event_id): edge.evidence for edge in drawn}
    assert pairs[mine["message"].id, mine["orchestrator_decision"].id] == "span link"


def test_without_ids_calls_are_joined_by_time_and_less_sure():
    blind = [
        TEAM[0],
        span("p1", "llm", 0.9, 1.6, "p"),
        TEAM[2],
        span("w1", "llm", 2.9, 3.6, "w"),
        span("w2", "llm", 3.9, 4.6, "w"),
    ]
    found, edges, drawn = woven([*blind, span("p2", "llm", 5.9, 6.6, "p")], CALLS)
    assert [(event.agent_id, event.target_agent_id) for event in found][:1] == [(A, B)]
    assert ("spawn", "spawn", "call 2") in edges
    assert {edge.confidence for edge in drawn if edge.kind == "spawn"} == {0.9}
    racing = [call(6, None, 3.0, 3.1), call(7, None, 3.05, 3.2)]
    _, _, drawn = woven([span("m", "message", 5.0, 5.0)], [call(8, A, 1.0), call(9, B, 2.0)])
    assert [edge.confidence for edge in drawn] == [0.5]
    assert woven([span("x", "llm", 2.9, 3.3), span("e", "message", 4.0, 4.0, links=("x",))], racing)[1] == {
        ("causal", "call 6", "message")
    }


def test_two_instrumentations_of_one_thing_are_one():
    twice = [*TEAM[:3], span("w'", "agent", 2.1, 4.9, "w", agent="worker"), *TEAM[3:]]
    assert [event.kind for event in woven(twice, CALLS)[0]].count("spawn") == 1


DEEDS = (
    "llm",
    "tool",
    "agent",
    "handoff",
    "guardrail",
    "step",
    "create_agent",
    "message",
    "return",
    "spawn",
    "safety_event",
)
SPANS = st.builds(
    lambda number, deed, start, length, parent, links, name, call_id, tool_call_id: span(
        f"s{number}",
        deed,
        start,
        start + length,
        parent and f"s{parent}",
        links=tuple(f"s{link}" for link in links),
        agent=name,
        target=name,
        call_id=call_id,
        tool=name,
        tool_call_id=tool_call_id,
        moments=(MomentReport("message", start, {"to": name, "channel": "peer"}, "x"),),
    ),
    st.integers(0, 12),
    st.sampled_from(DEEDS),
    st.floats(0, 10),
    st.floats(0, 5),
    st.none() | st.integers(1, 12),
    st.lists(st.integers(0, 12), max_size=2),
    st.sampled_from(["", "x", "y"]),
    st.none() | st.sampled_from([one.id for one in CALLS]),
    st.sampled_from(["", "x1", f"call_{CALLS[0].id}_0"]),
)
EVENTS = st.builds(
    lambda kind, t, agent, target: EventRow(
        RUN, kind, {"tool_call_id": "x1"}, t, agent_id=agent, target_agent_id=target
    ),
    st.sampled_from(["spawn", "tool_call", "message", "return"]),
    st.floats(0, 10),
    st.sampled_from([None, A, B]),
    st.sampled_from([None, A, B]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(SPANS, max_size=10), st.lists(EVENTS, max_size=4))
def test_whatever_spans_say_edges_have_both_ends_and_no_row_comes_twice(reports, seen):
    found, drawn = weave(RUN, reports, CALLS, [("x", A)], seen, [])
    there = {event.id for event in (*seen, *found)} | {one.id for one in CALLS}
    assert len({event.id for event in found}) == len(found)
    assert len({edge.id for edge in drawn}) == len(drawn)
    assert all({edge.source_event_id, edge.target_event_id} <= there for edge in drawn)
    assert all(isinstance(edge, EdgeRow) and edge.source_event_id != edge.target_event_id for edge in drawn)
    assert weave(RUN, reports, CALLS, [("x", A)], [*seen, *found], drawn)[0] == []
