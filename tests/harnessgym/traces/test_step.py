"""Steps of a rollout in order, and the patterns that select them."""

import pytest
from pydantic import ValidationError

from harnessgym.traces.step import Pattern, RolloutStep, steps_of
from tests.support.graphs import a_call, a_graph, an_event


def step(arguments='{"path": "/tmp/x", "n": 3}', tool="read", kind="tool_call"):
    return RolloutStep("s", kind, 1.0, tool=tool, arguments=arguments)


@pytest.mark.parametrize(
    ("name", "text"),
    [("path", "/tmp/x"), ("n", "3"), ("gone", None), ("*", '{"path": "/tmp/x", "n": 3}')],
)
def test_an_argument_is_text(name, text):
    assert step().argument(name) == text


@pytest.mark.parametrize("arguments", ["", "not json", "[1]", "3"])
def test_arguments_that_are_no_object_are_one_text(arguments):
    assert step(arguments).argument("path") == arguments


def test_a_null_argument_is_there_as_null():
    assert step('{"path": null}').argument("path") is None
    assert step('{"path": {"b": 1, "a": 2}}').argument("path") == '{"a":2,"b":1}'


@pytest.mark.parametrize(
    ("pattern", "met"),
    [
        ({}, True),
        ({"tool": "read"}, True),
        ({"tool": "rea"}, False),
        ({"tool": "read|write"}, True),
        ({"tool": ".*"}, True),
        ({"arguments": {"path": "tmp"}}, True),
        ({"arguments": {"path": "^tmp"}}, False),
        ({"arguments": {"path": "tmp", "n": "4"}}, False),
        ({"arguments": {"gone": ""}}, False),
        ({"arguments": {"*": '"n": 3'}}, True),
        ({"step": "spawn"}, False),
    ],
)
def test_a_pattern_is_met_when_all_its_conditions_are(pattern, met):
    assert Pattern(**pattern).meets(step()) is met


def test_a_bad_expression_is_refused_when_it_is_read():
    with pytest.raises(ValidationError, match="'\\(' is no regular expression"):
        Pattern(tool="(")
    with pytest.raises(ValidationError, match="is no regular expression"):
        Pattern(arguments={"path": "["})


def test_a_pattern_is_worded_in_short():
    assert str(Pattern()) == "tool_call"
    assert str(Pattern(tool="read")) == "tool_call of read"
    assert str(Pattern(step="spawn", arguments={"a": "b"})) == "spawn with {'a': 'b'}"


def test_steps_come_in_order_of_time_with_calls_first():
    events = [
        an_event("t", "tool_call", 2.0, attributes={"tool": "read", "arguments": {"b": 1}}),
        an_event("c", "llm_call", 2.0),
        an_event("s", "spawn", 1.0, target_agent_id="b"),
        an_event("r", "refused_request", 0.5),
    ]
    found = steps_of(a_graph(a_call("c"), events=events))
    assert [item.id for item in found] == ["s", "c", "t"]
    assert (found[1].tokens, found[2].tool, found[2].arguments) == (5, "read", '{"b":1}')


def test_side_calls_are_no_steps():
    events = [an_event("c", "llm_call"), an_event("d", "llm_call")]
    found = steps_of(a_graph(a_call("c", kind="side"), a_call("d", kind="count"), events=events))
    assert found == []


def test_what_a_harness_reports_about_itself_is_left_out_unless_asked_for():
    graph = a_graph(events=[an_event("t", "tool_call", source="otlp")])
    assert steps_of(graph) == []
    assert [item.id for item in steps_of(graph, self_reported=True)] == ["t"]
