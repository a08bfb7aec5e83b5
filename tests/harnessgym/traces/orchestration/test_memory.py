"""The state of a session's orchestration, rebuilt from stored calls and events."""

from harnessgym.message import Message, ToolCall
from harnessgym.store.events import EventRow
from harnessgym.traces.orchestration.memory import Recorded, recall

TASK = ToolCall("1", "Task", '{"prompt": "write the tests"}')


def event(kind, t=1.0, call_id=None, agent_id="lead", name="e", attributes=None, target=None, evidence=None):
    return EventRow("rollout", kind, attributes or {}, t, call_id, agent_id, evidence, None, name, target)


def begun(name, t=1.0, agent_id="lead", **attributes):
    return event("llm_call", t, name, agent_id, name, attributes)


def answered(name, answer=None, agent_id="lead", kind="policy", parent=None):
    return Recorded(name, agent_id, kind, parent, answer, "stop")


def test_an_empty_session_has_no_agents():
    assert recall("rollout", [], []).members.by_id == {}


def test_an_agent_has_its_last_answer():
    calls = [answered("c1", Message("assistant", "one")), answered("c2", Message("assistant", "two"))]
    machine = recall("rollout", [begun("c1", 1.0), begun("c2", 2.0)], calls)
    lead = machine.members.get("lead")
    assert (lead.last_call, lead.last_reply.message.content, lead.last_reply.t) == ("c2", "two", 2.0)
    assert machine.now == 2.0


def test_a_call_without_an_answer_has_begun():
    machine = recall("rollout", [begun("c1")], [answered("c1")])
    assert list(machine.begun) == ["c1"]
    assert machine.members.get("lead").last_reply is None


def test_side_calls_and_calls_without_events_are_no_agents():
    calls = [answered("c1", kind="side"), answered("c2"), answered("c3", agent_id=None)]
    machine = recall("rollout", [begun("c1"), begun("c3", agent_id=None)], calls)
    assert machine.members.by_id == {}
    assert machine.begun == {}


def test_a_tool_call_is_open_until_its_result():
    made = event("tool_call", 2.0, "c1", name="t1", attributes={"index": 0, "tool_call_id": "1"})
    calls = [answered("c1", Message("assistant", tool_calls=(TASK,)))]
    machine = recall("rollout", [begun("c1"), made], calls)
    assert [call.event_id for call in machine.tools.open.values()] == ["t1"]
    result = event("tool_result", 3.0, name="r1", attributes={"tool_call_id": "1"})
    machine = recall("rollout", [begun("c1"), made, result], calls)
    assert machine.tools.open == {}
    assert list(machine.tools.started) == ["1"]


def test_an_unmatched_result_closes_no_call():
    made = event("tool_call", 2.0, "c1", name="t1", attributes={"index": 0, "tool_call_id": "1"})
    attributes = {"tool_call_id": "x", "given_id": "x", "content_hash": "h"}
    result = event("tool_result", 3.0, name="r1", attributes=attributes, evidence="unmatched")
    calls = [answered("c1", Message("assistant", tool_calls=(TASK,)))]
    machine = recall("rollout", [begun("c1"), made, result], calls)
    assert list(machine.tools.open) == ["1"]


def test_a_spawned_agent_is_open_until_it_returns():
    made = event("tool_call", 2.0, "c1", name="t1", attributes={"index": 0, "tool_call_id": "1"})
    spawn = event("spawn", 3.0, name="s", target="child", attributes={"tool_call_id": "1"})
    calls = [answered("c1", Message("assistant", tool_calls=(TASK,)))]
    events = [begun("c1"), made, spawn]
    machine = recall("rollout", events, calls)
    child = machine.members.get("child")
    assert (child.open, child.parent, child.tool_call_id) == (True, "lead", "1")
    assert machine.tools.open["1"].target == "child"
    machine = recall("rollout", [*events, event("return", 4.0, agent_id="child", name="r")], calls)
    assert (machine.members.get("child").open, machine.members.get("child").ended) == (False, True)


def test_a_decision_that_hands_over_names_the_successor():
    decision = event("orchestrator_decision", 2.0, "c1", name="d", target="coder")
    machine = recall("rollout", [begun("c1"), decision], [answered("c1", Message("assistant", "over"))])
    assert machine.decisions == {"c1": "d"}
    assert machine.members.last("lead").id == "coder"


def test_an_agent_that_was_despawned_has_ended():
    machine = recall("rollout", [event("despawn", 2.0, agent_id="child")], [])
    assert machine.members.get("child").ended


def test_an_answer_of_several_is_held_until_it_acts():
    answer = Message("assistant", tool_calls=(TASK,))
    machine = recall("rollout", [begun("c1", siblings=["c1", "c2"])], [answered("c1", answer)])
    assert list(machine.held) == ["c1"]
    acted = event("tool_call", 2.0, "c1", name="t1", attributes={"index": 0, "tool_call_id": "1"})
    machine = recall("rollout", [begun("c1", siblings=["c1", "c2"]), acted], [answered("c1", answer)])
    assert machine.held == {}
