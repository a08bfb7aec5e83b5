"""The agents of a session: what starts one, what came back from one, and what was handed over."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.message import Message, ToolCall
from harnessgym.traces.orchestration.agents import (
    Members,
    Reply,
    came_back,
    detaches,
    shared,
    starts_agent,
    texts_of,
)


def reply(call_id="c", t=1.0, content="", *tools):
    return Reply(call_id, t, Message("assistant", content, tool_calls=tools), "stop")


def test_an_agent_is_added_once():
    members = Members()
    assert members.get("a") is members.get("a")
    assert list(members.by_id) == ["a"]


def test_a_started_agent_is_open_until_it_comes_back():
    members = Members()
    members.start("child", "lead", "tool-1")
    members.start("child", "lead", "tool-2")
    child = members.get("child")
    assert (child.spawned, child.open, child.ended, child.tool_call_id) == (True, True, False, "tool-2")
    assert members.get("lead").children == ["child"]
    members.come_back("child")
    assert (child.open, child.ended, members.get("lead").children) == (False, True, [])
    members.come_back("child")
    assert members.get("lead").children == []


def test_an_agent_without_a_parent_may_start_and_come_back():
    members = Members()
    members.start("a", None, None)
    members.come_back("a")
    assert members.get("a").ended


def test_the_last_of_a_chain_of_handovers_continues():
    members = Members()
    members.hand_over("a", "b")
    members.hand_over("b", "c")
    assert members.last("a").id == members.last("b").id == "c"
    assert members.last("d").id == "d"


def test_a_circle_of_handovers_ends_at_the_one_that_works():
    members = Members()
    members.hand_over("a", "b")
    members.hand_over("b", "a")
    assert members.last("a").id == members.last("b").id == "a"


def test_an_agent_rests_until_its_next_request():
    member = Members().get("a")
    assert member.resting is None
    member.last_reply, member.last_call = reply("c1"), "c1"
    assert member.resting is member.last_reply
    member.last_call = "c2"
    assert member.resting is None


def test_the_leader_answered_last_of_those_that_nobody_started():
    members = Members()
    assert members.leader() is None
    for name, t in (("a", 1.0), ("b", 3.0), ("spawned", 9.0), ("busy", 8.0)):
        members.get(name).last_reply = reply(name, t)
        members.get(name).last_call = name
    members.start("spawned", "a", None)
    members.get("busy").last_call = "another"
    assert members.leader() is members.get("b")


def test_texts_of_a_reply_are_its_own_and_long_arguments():
    tool = ToolCall("1", "send", '{"to": "short", "text": "a longer text"}')
    assert reply("c", 1.0, " hello ", tool).texts == ["hello", "a longer text"]
    assert reply("c", 1.0, "  ").texts == []
    assert reply("c", 1.0, "", tool).acts
    assert not reply().acts


def test_a_reply_is_found_in_a_history_by_text_and_tool_names():
    tool = ToolCall("1", "read", "{}")
    said = reply("c", 1.0, "hello", tool)
    assert said.is_in(Message("assistant", " hello\n", tool_calls=(ToolCall("2", "read", "[]"),)))
    assert not said.is_in(Message("assistant", "hello"))
    assert not said.is_in(Message("assistant", "other", tool_calls=(tool,)))


def call(name="Task", **arguments):
    return ToolCall("id", name, json.dumps(arguments))


@pytest.mark.parametrize(
    "name", ["Task", "task", "spawn_agent", "transfer_to_coder", "runSubagent", "delegate-work", "AGENT"]
)
def test_names_that_start_an_agent(name):
    assert starts_agent(name)


@pytest.mark.parametrize(
    "name",
    ["wait_agent", "TaskOutput", "TodoWrite", "list_agents", "bash", "multitasking", "task_update", ""],
)
def test_names_that_do_not(name):
    assert not starts_agent(name)


@pytest.mark.parametrize(
    ("tool", "answer"),
    [
        (call("Task", run_in_background=True), True),
        (call("Task", run_in_background="true"), False),
        (call("Task", run_in_background=False), False),
        (call("spawn_agent"), True),
        (call("Task", prompt="in the background"), False),
        (ToolCall("id", "Task", "not json"), False),
    ],
)
def test_calls_that_do_not_wait_for_their_agent(tool, answer):
    assert detaches(tool) is answer


def test_texts_of_nested_arguments_come_longest_first():
    assert texts_of(call(a=" xx ", b={"c": ["yyyy", 3, None, ""]}, d="z")) == ["yyyy", "xx", "z"]


def test_arguments_that_are_no_json_are_one_text():
    assert texts_of(ToolCall("id", "apply_patch", " *** Begin ")) == ["*** Begin"]


def test_a_text_that_an_agent_heard_counts_by_its_length():
    assert shared(["write\n the tests"], "<task>write the   tests</task>", named=False) == len(
        "write the tests"
    )
    assert shared(["other text entirely"], "write the tests", named=False) == 0
    assert shared([], "write the tests", named=True) == 0


def test_short_texts_count_only_where_the_tool_starts_agents():
    assert shared(["fix"], "fix it", named=True) == 3
    assert shared(["fix"], "fix it", named=False) == 0
    assert shared(["go"], "go on", named=True) == 0


def test_a_call_may_hold_more_than_the_agent_heard():
    assert shared(["Context. Now write the tests. Thanks."], "write the tests", named=False) == 15
    assert shared(["Context. Now fix it. Thanks."], "fix it", named=False) == 0


def test_an_answer_came_back_as_text_or_as_json():
    text = 'It says "Ü"\nand ends.'
    for result in (text, f"<result>{text}</result>", json.dumps({"out": text}), text.replace("\n", "   ")):
        assert came_back([text], result)
    assert came_back([text], json.dumps({"out": text}, ensure_ascii=False))
    assert not came_back([text], "It says something else.")
    assert not came_back([], "anything")


def test_a_short_answer_is_not_recognised_far_away():
    assert came_back(["done"], "it is done")
    assert not came_back(["done"], "it is done", far=True)
    assert came_back(["it is all done"], "and it is all done now", far=True)


@given(st.text(min_size=1, max_size=30))
def test_every_text_comes_back_in_json(text):
    assert came_back([text], json.dumps([text]))
