"""Evidence from tool names and texts: what starts an agent, and what came back from one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.message import ToolCall
from harnessgym.traces.orchestration.evidence import came_back, detaches, shared, starts_agent, texts_of


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
