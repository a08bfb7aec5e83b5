"""Spans as trees: which call a span is, which agent an agent's span stands for, and how sure that is."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from proxies.otlp.conventions import SpanReport
from proxies.otlp.tree import BY_ID, BY_TIME, JoinedSpan, SeenCall, SpanTree

A, B = "a" * 24, "b" * 24
"""Two agents."""


def call(call_id: str, agent: str | None, start: float, end: float | None = None) -> SeenCall:
    return SeenCall(call_id, agent, start, start + 0.5 if end is None else end)


def span(
    span_id: str,
    deed: str = "step",
    start: float = 0.0,
    end: float = 9.0,
    parent: str | None = None,
    **fields: Any,
) -> SpanReport:
    links = fields.pop("links", ())
    return SpanReport("t" * 32, span_id, parent, links, deed, start, end, deed, f"is {deed}", **fields)


def test_a_minted_id_is_an_exact_match() -> None:
    report = span("s", "llm", call_id="c1")
    tree = SpanTree([report], [call("c1", A, 1.0)])
    assert tree.call(report) == JoinedSpan(call("c1", A, 1.0), BY_ID, None)


def test_an_id_of_another_rollout_s_call_matches_nothing() -> None:
    report = span("s", "llm", 0.5, 2.0, call_id="other")
    assert SpanTree([report], [call("c1", A, 1.0)]).call(report) is None


def test_a_model_span_without_an_id_matches_a_call_within_its_time() -> None:
    early, fitting, late = call("c1", A, 0.2), call("c2", A, 1.0), call("c3", A, 1.8)
    report = span("s", "llm", 0.9, 2.0)
    assert SpanTree([report], [early, fitting, late]).call(report) == JoinedSpan(fitting, BY_TIME, 0.9)


def test_confidence_is_shared_among_candidates() -> None:
    calls = [call(f"c{number}", A, 1.0 + number / 10) for number in range(3)]
    report = span("s", "llm", 0.9, 2.0)
    joined = SpanTree([report], calls).call(report)
    assert joined is not None
    assert (joined.call.id, joined.confidence) == ("c0", 0.3)


def test_each_call_is_given_to_one_span() -> None:
    reports = [span("s1", "llm", 0.9, 3.0), span("s2", "llm", 1.0, 3.0), span("s3", "llm", 1.1, 3.0)]
    tree = SpanTree(reports, [call("c1", A, 1.2), call("c2", A, 1.3)])
    matches = [tree.call(report) for report in reports]
    assert [joined and joined.call.id for joined in matches] == ["c1", "c2", None]


def test_a_call_with_an_exact_match_is_not_given_away_by_time() -> None:
    exact, guessed = span("s2", "llm", 0.9, 3.0, call_id="c1"), span("s1", "llm", 0.8, 3.0)
    tree = SpanTree([guessed, exact], [call("c1", A, 1.0)])
    assert tree.call(guessed) is None


def test_only_model_spans_are_matched_by_time() -> None:
    report = span("s", "tool", 0.9, 2.0)
    assert SpanTree([report], [call("c1", A, 1.0)]).call(report) is None


def test_an_agent_s_span_narrows_the_matches_inside_it() -> None:
    calls = [call("c1", A, 1.0), call("c2", B, 2.0), call("c3", A, 2.1)]
    agent = span("g", "agent", agent="planner")
    exact = span("s1", "llm", 0.9, 1.6, "g", call_id="c1")
    guessed = span("s2", "llm", 1.9, 3.0, "g")
    joined = SpanTree([agent, exact, guessed], calls).call(guessed)
    assert joined == JoinedSpan(calls[2], BY_TIME, 0.9)


def test_the_agent_with_most_calls_inside_a_span_is_its_agent() -> None:
    calls = [call("c1", A, 1.0), call("c2", B, 2.0), call("c3", B, 3.0)]
    agent = span("g", "agent")
    inside = [span(f"s{at}", "llm", at, at + 1.0, "g", call_id=f"c{at}") for at in (1, 2, 3)]
    tree = SpanTree([agent, *inside], calls)
    assert tree.agent_id(agent) == B
    assert [joined.call.id for joined in tree.inside(agent)] == ["c1", "c2", "c3"]


def test_calls_belong_to_the_nearest_agent_s_span() -> None:
    outer, inner = span("o", "agent"), span("i", "agent", 1.0, 4.0, "o")
    step = span("x", "step", 1.0, 4.0, "i")
    model = span("s", "llm", 1.0, 2.0, "x", call_id="c1")
    tree = SpanTree([outer, inner, step, model], [call("c1", B, 1.2)])
    assert (tree.agent_around(model), tree.agent_around(inner)) == (inner, outer)
    assert (tree.agent_id(inner), tree.agent_id(outer)) == (B, None)


def test_a_tool_is_around_what_it_contains_until_another_agent_begins() -> None:
    tool = span("t", "tool")
    below, agent = span("x", "step", parent="t"), span("g", "agent", parent="t")
    inside = span("y", "step", parent="g")
    tree = SpanTree([tool, below, agent, inside], [])
    assert (tree.tool_around(below), tree.tool_around(agent)) == (tool, tool)
    assert (tree.tool_around(inside), tree.agent_around(inside)) == (None, agent)
    assert tree.tool_around(tool) is None


def test_a_root_hangs_below_the_first_known_span_that_it_links_to() -> None:
    agent = span("g", "agent")
    root = span("r", "step", links=("unknown", "g"))
    tree = SpanTree([agent, root], [])
    assert tree.parent(root) == agent
    assert tree.agent_around(root) == agent


def test_a_parent_that_was_not_exported_is_none() -> None:
    child = span("s", parent="lost", links=("g",))
    assert SpanTree([child, span("g", "agent")], []).parent(child) is None


@settings(max_examples=50)
@given(st.lists(st.none() | st.integers(0, 11), min_size=1, max_size=12))
def test_cycles_of_parents_end(parents: list[int | None]) -> None:
    reports = [
        span(f"s{number}", "agent" if number % 3 == 0 else "tool", parent=None if at is None else f"s{at}")
        for number, at in enumerate(parents)
    ]
    tree = SpanTree(reports, [])
    for report in reports:
        around = tree.agent_around(report)
        assert around is None or around.deed == "agent"
        assert tree.agent_id(report) is None


def test_a_deep_tree_is_walked_without_recursion() -> None:
    chain = [span("s0", "agent")] + [span(f"s{at}", parent=f"s{at - 1}") for at in range(1, 3_000)]
    assert SpanTree(chain, []).agent_around(chain[-1]) == chain[0]


def test_two_instrumentations_of_one_tool_repeat_each_other() -> None:
    outer = span("o", "tool", tool="get", tool_call_id="x1")
    same = span("i", "tool", parent="o", tool="get")
    named = span("j", "tool", parent="o", tool="get", tool_call_id="x1")
    other_call = span("k", "tool", parent="o", tool="get", tool_call_id="x2")
    other_tool = span("l", "tool", parent="o", tool="put")
    step = span("m", "step", parent="o")
    tree = SpanTree([outer, same, named, other_call, other_tool, step], [])
    repeated = [tree.repeats(report) for report in (outer, same, named, other_call, other_tool, step)]
    assert repeated == [False, True, True, False, False, False]


def test_steps_do_not_repeat_each_other() -> None:
    outer, inner = span("o"), span("i", parent="o")
    assert not SpanTree([outer, inner], []).repeats(inner)


def test_a_name_means_an_agent_if_only_one_has_it() -> None:
    calls = [call("c1", A, 1.0), call("c2", B, 2.0)]
    one = [span("g", "agent", agent="planner"), span("s1", "llm", 1.0, 2.0, "g", call_id="c1")]
    two = [span("h", "agent", agent="planner"), span("s2", "llm", 2.0, 3.0, "h", call_id="c2")]
    assert SpanTree(one, calls).named("planner") == A
    assert SpanTree([*one, *two], calls).named("planner") is None
    assert SpanTree(one, calls).named("stranger") is None


def test_names_of_the_proxy_fill_in_those_that_spans_do_not_tell() -> None:
    calls = [call("c1", A, 1.0)]
    reports = [span("g", "agent", agent="planner"), span("s", "llm", 1.0, 2.0, "g", call_id="c1")]
    tree = SpanTree(reports, calls, [("planner", B), ("worker", B)])
    assert (tree.named("planner"), tree.named("worker")) == (A, B)


def test_a_span_acts_for_the_agent_of_its_call_its_name_or_what_is_around_it() -> None:
    calls = [call("c1", A, 1.0), call("c2", B, 2.0)]
    agent = span("g", "agent", agent="planner")
    model = span("s", "llm", 1.0, 2.0, "g", call_id="c1")
    other = span("o", "llm", 2.0, 3.0, "g", call_id="c2", agent="planner")
    by_name = span("n", "tool", agent="planner")
    around = span("w", "tool", parent="g")
    alone = span("l", "tool")
    tree = SpanTree([agent, model, other, by_name, around, alone], calls)
    assert tree.agent_id(other) == B, "the call counts more than the name"
    assert (tree.agent_id(by_name), tree.agent_id(around), tree.agent_id(alone)) == (None, A, None)


def test_calls_before_and_after_a_moment() -> None:
    calls = [call("c1", A, 1.0), call("c2", B, 2.0), call("c3", A, 3.0)]
    tree = SpanTree([], calls)
    assert tree.last_before(A, 2.9) == JoinedSpan(calls[0], BY_TIME, 0.9)
    assert tree.last_before(A, 1.4) is None
    assert tree.last_before(A, 1.5) == JoinedSpan(calls[0], BY_TIME, 0.9)
    assert tree.first_after(A, 1.1) == JoinedSpan(calls[2], BY_TIME, 0.9)
    assert tree.first_after(A, 3.0) == JoinedSpan(calls[2], BY_TIME, 0.9)
    assert tree.first_after("nobody", 0.0) is None


def test_a_moment_of_an_unknown_agent_is_a_guess_among_several() -> None:
    calls = [call("c1", A, 1.0), call("c2", B, 2.0), call("c3", None, 2.6)]
    assert SpanTree([], calls).last_before(None, 9.0) == JoinedSpan(calls[1], BY_TIME, 0.5)
    assert SpanTree([], calls[:1]).last_before(None, 9.0) == JoinedSpan(calls[0], BY_TIME, 0.9)


def test_a_named_agent_s_calls_are_inside_its_span_by_time() -> None:
    calls = [call("c1", A, 1.0), call("c2", A, 2.0), call("c3", A, 5.0), call("c4", B, 1.5)]
    agent = span("g", "agent", 0.5, 4.0, agent="planner")
    tree = SpanTree([agent], calls, [("planner", A)])
    assert tree.inside(agent) == [JoinedSpan(calls[at], BY_TIME, 0.9) for at in (0, 1)]


def test_a_call_is_known_by_its_id() -> None:
    calls = [call("c1", A, 1.0)]
    assert SpanTree([], calls).named_call("c1") == JoinedSpan(calls[0])
    assert SpanTree([], calls).named_call("c2") is None
    assert SpanTree([], calls).named_call(None) is None
