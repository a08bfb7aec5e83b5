"""The agents of a session: started, back, handed over."""

from harnessgym.message import Message, ToolCall
from harnessgym.traces.orchestration.agents import Members, Reply


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
    member.said, member.last_call = reply("c1"), "c1"
    assert member.resting is member.said
    member.last_call = "c2"
    assert member.resting is None


def test_the_leader_answered_last_of_those_that_nobody_started():
    members = Members()
    assert members.leader() is None
    for name, t in (("a", 1.0), ("b", 3.0), ("spawned", 9.0), ("busy", 8.0)):
        members.get(name).said = reply(name, t)
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
