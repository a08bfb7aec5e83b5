"""The tree of agents as it is drawn, line by line, and as JSON."""

import io

import pytest
from rich.console import Console

from harnessgym.cli.traces.agent_tree import _attributes, _number, _ranges, _sure, drawn, tree_json
from tests.support.graphs import a_call, a_graph, an_agent, an_event


def shown(graph, *, events=False):
    """The lines of a tree without its guides."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(drawn(graph, events=events))
    return [line.lstrip("│├└─ ").rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "#3"),
        ([0, 1], "#0-#1"),
        ([0, 1, 2], "#0-#2"),
        ([0, 2, 3, 4, 9], "#0, #2-#4, #9"),
        ([5, 4], "#5, #4"),
    ],
)
def test_consecutive_numbers_are_ranges(numbers, text):
    assert _ranges(numbers) == text


@pytest.mark.parametrize(
    ("evidence", "confidence", "text"),
    [
        (None, None, None),
        ("header", None, "header"),
        (None, 0.5, "inferred, 50% sure"),
        ("content", 0.9, "inferred by content, 90% sure"),
        ("content", 0.0, "inferred by content, 0% sure"),
    ],
)
def test_evidence_is_worded_with_its_confidence(evidence, confidence, text):
    assert _sure(evidence, confidence) == text


def test_nouns_are_in_the_plural_unless_there_is_one():
    assert [_number(count, "call") for count in (0, 1, 1234)] == ["0 calls", "1 call", "1,234 calls"]


def test_attributes_are_text_or_json_and_cut_to_a_line():
    event = an_event("e", "message", attributes={"tool": "read\nfile", "index": 2, "ids": ["a"]})
    assert _attributes(event) == 'tool=read file index=2 ids=["a"]'
    assert len(_attributes(an_event("e", "message", attributes={"text": "x" * 500}))) == 120


def test_a_tree_names_agents_branches_and_what_started_them():
    agents = [an_agent("a", evidence="header", shown="lead"), an_agent("b", "a", "s", shown="coder")]
    why = {"evidence": "text", "confidence": 0.8, "attributes": {"tool": "Task"}}
    spawn = an_event("s", "spawn", 1.0, "a", target_agent_id="b", **why)
    calls = [
        a_call("1", "a", prompt_len=1500),
        a_call("2", "a", "1", completion_len=None, prompt_len=7),
        a_call("3", "b", "1", break_class="edited"),
        a_call("4", "b", break_class="sub_agent"),
        a_call("5", "b", kind="side", side_call="title"),
    ]
    assert shown(a_graph(*calls, agents=agents, events=[spawn])) == [
        "Rollout rollout  pi · finished",
        "lead  2 calls, 5 tokens sampled, longest prompt 1,500  known by header",
        "branch #0-#1: 5 tokens",
        "coder  3 calls, 15 tokens sampled, longest prompt 10  spawned by Task (inferred by text, 80% sure)",
        "branch #2 behind #0: 5 tokens  break: edited",
        "branch #3: 5 tokens",
        "branch title #4: 5 tokens",
    ]


def test_events_show_their_time_since_the_first_and_their_source():
    events = [
        an_event("1", "llm_call", 100.0, "a", call_id="1"),
        an_event("m", "message", 101.5, "a", target_agent_id="b", call_id="1"),
        an_event("o", "despawn", 103.0, "b", source="otlp"),
        an_event("u", "refused_request", 104.25, attributes={"problem": "limit"}),
    ]
    lines = shown(
        a_graph(a_call("1", "a"), agents=[an_agent("a"), an_agent("b")], events=events), events=True
    )
    assert [line for line in lines if line.startswith("+")] == [
        "+1.50 s message → b #0",
        "+3.00 s despawn [otlp]",
        "+4.25 s refused_request problem=limit",
    ]
    assert not any("llm_call" in line for line in lines)


def test_calls_of_no_agent_stand_under_that_name():
    assert shown(a_graph(a_call("1")))[1] == "no agent  1 call, 5 tokens sampled, longest prompt 10"


def test_json_holds_each_agent_once_with_call_numbers():
    graph = a_graph(a_call("x", "a"), a_call("y"), agents=[an_agent("a", evidence="content")])
    out = tree_json(graph, events=False)
    assert "events" not in out
    assert out["agents"][0] == {
        "id": "a",
        "name": "a",
        "role": None,
        "parent_agent_id": None,
        "evidence": "content",
        "spawn": None,
        "calls": 1,
        "sampled_tokens": 5,
        "prompt_tokens": 10,
        "branches": [{"calls": [0], "sampled_tokens": 5, "side": False}],
    }
    assert [agent["id"] for agent in out["agents"]] == ["a", None]
    assert tree_json(graph, events=True)["edges"] == ()
