"""Agents' labels, the heading of a call, and a call as JSON."""

import pytest

from harnessgym.cli.traces.call_table import AgentLabels, call_json, heading, versions
from harnessgym.tokens import VersionSpan
from tests.support.graphs import a_call, an_agent

LABELS = AgentLabels([an_agent("a", shown="lead"), an_agent("b", shown="coder")], "pi")


def test_agents_of_one_name_are_numbered_from_the_second():
    labels = AgentLabels([an_agent(name, shown="coder") for name in "abc"])
    assert [labels.name(name) for name in "abc"] == ["coder", "coder #2", "coder #3"]
    assert len({labels.colour(name) for name in "abc"}) == 3


def test_an_unknown_agent_has_the_name_for_calls_of_no_agent():
    assert LABELS.name(None) == LABELS.name("gone") == "pi"
    assert AgentLabels([]).name(None) == "agent"


def test_colours_repeat_after_the_last():
    labels = AgentLabels([an_agent(str(number)) for number in range(9)])
    assert labels.colour("0") == labels.colour("8") != labels.colour("1")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, "#0 lead  chat · 10 prompt + 5 sampled tokens · stop"),
        ({"prompt_len": 12345}, "#0 lead  chat · 12,345 prompt + 5 sampled tokens · stop"),
        (
            {"completion_len": None, "finish_reason": None, "status": "intent"},
            "#0 lead  chat · 10 prompt + 0 sampled tokens · intent",
        ),
        ({"status": "aborted"}, "#0 lead  chat · 10 prompt + 5 sampled tokens · stop · aborted"),
        (
            {"kind": "side", "side_call": "title"},
            "#0 lead  chat · side call (title) · 10 prompt + 5 sampled tokens · stop",
        ),
        ({"kind": "compaction"}, "#0 lead  chat · compaction call · 10 prompt + 5 sampled tokens · stop"),
        ({"parent_call_id": "0"}, "#0 lead  chat · continues #7 · 10 prompt + 5 sampled tokens · stop"),
        (
            {"versions": (VersionSpan(0, 2, 3), VersionSpan(2, 5, 4))},
            "#0 lead  chat · 10 prompt + 5 sampled tokens · version 3,4 · stop",
        ),
    ],
)
def test_a_heading_tells_what_is_not_usual(changed, text):
    assert heading(a_call("x", "a", **changed), {"x": 0, "0": 7}, LABELS).plain == text


def test_a_side_call_is_dim():
    assert heading(a_call("x", "a", kind="count"), {"x": 0}, LABELS).style == "dim"


def test_a_call_as_json_names_its_parent_by_number():
    call = a_call("x", "b", "p", versions=(VersionSpan(0, 5, 2),), error="away")
    out = call_json(call, {"p": 3, "x": 4}, LABELS)
    assert (out["number"], out["continues"], out["agent"], out["error"]) == (4, 3, "coder", "away")
    assert out["versions"] == versions(call) == [2]
    assert call_json(a_call("x"), {"x": 0}, LABELS)["continues"] is None
