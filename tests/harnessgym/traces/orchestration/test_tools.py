"""Results of tool calls are matched by id, then by name, then by order."""

import pytest

from harnessgym.message import Message, ToolCall
from harnessgym.traces.orchestration.rows import OBSERVED
from harnessgym.traces.orchestration.tools import UNMATCHED, OpenCall, ToolCalls


def made(tool_id, name="read", agent="a", call_id="c"):
    return OpenCall(f"event-{tool_id}", call_id, agent, ToolCall(tool_id, name, "{}"), 1.0)


def result(tool_id=None, text="out", name=None):
    return Message("tool", text, tool_call_id=tool_id, name=name)


@pytest.fixture
def tools():
    """Two open calls of one answer."""
    calls = ToolCalls()
    calls.add(made("1"))
    calls.add(made("2", "write"))
    return calls


def joined(tools, *recent, history=(), agent="a", harness_names_agents=False):
    """The matched tool-call id of each result, and the confidence."""
    matched = tools.join(agent, history, recent, harness_names_agents=harness_names_agents)
    return [(item.call and item.call.call.id, item.why.confidence) for item in matched]


def test_a_result_belongs_to_the_call_of_its_id(tools):
    assert joined(tools, result("2"), result("1")) == [("2", None), ("1", None)]
    assert tools.open == {}


def test_a_result_counts_once(tools):
    message = result("1")
    assert joined(tools, message) == [("1", None)]
    assert joined(tools, history=[message]) == []


def test_a_foreign_result_is_matched_by_name_then_by_order(tools):
    assert joined(tools, result("x", name="write"), result("y", "other")) == [("2", 0.8), ("1", 0.6)]


def test_a_foreign_result_with_another_name_is_unmatched(tools):
    (item,) = tools.join("a", [], [result("x", name="bash")], harness_names_agents=False)
    assert (item.call, item.why) == (None, UNMATCHED)
    assert joined(tools, result("x", name="bash")) == []


def test_a_foreign_result_in_the_history_is_unmatched(tools):
    assert joined(tools, history=[result("x")]) == [(None, None)]
    assert list(tools.open) == ["1", "2"]


def test_only_the_latest_answer_is_matched_by_order(tools):
    tools.add(made("3", call_id="later"))
    assert joined(tools, result("x")) == [("3", 0.6)]


def test_results_of_another_agents_calls_are_its_own_where_agents_are_named(tools):
    assert joined(tools, result("1"), agent="b", harness_names_agents=True) == []
    assert "1" in tools.open
    assert joined(tools, result("1"), agent="b") == [("1", OBSERVED.confidence)]


def test_an_id_that_is_used_again_belongs_to_the_newer_call(tools):
    joined(tools, result("1"))
    tools.add(made("1", call_id="later"))
    (item,) = tools.join("a", [], [result("1", "new")], harness_names_agents=False)
    assert item.call.call_id == "later"


def test_a_call_that_starts_an_agent_waits_for_it_after_its_result():
    tools = ToolCalls()
    tools.add(made("1", "Task"))
    tools.add(made("2", "read"))
    tools.close("1")
    tools.close("2")
    assert [call.call.id for call in tools.unclaimed()] == ["1"]
    assert tools.claim("1", "child").target == "child"
    assert tools.unclaimed() == []
    assert tools.claim("gone", "child") is None


def test_a_claimed_call_is_not_kept_after_its_result():
    tools = ToolCalls()
    tools.add(made("1", "Task"))
    tools.claim("1", "child")
    tools.close("1")
    assert tools.started == {}


def test_an_answer_that_hands_over_starts_no_other_agent():
    tools = ToolCalls()
    tools.add(made("1", "transfer_to_coder"))
    tools.add(made("2", "Task"))
    tools.close("2")
    tools.hand_over("c", "coder")
    assert tools.unclaimed() == []
    assert tools.open["1"].target == "coder"
