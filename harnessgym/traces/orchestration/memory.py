"""Rebuilds the state of a session's orchestration from the store."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harnessgym.message import Message
from harnessgym.store.events import EventRow
from harnessgym.traces.orchestration.agents import Reply
from harnessgym.traces.orchestration.tools import UNMATCHED, OpenCall
from harnessgym.traces.orchestration.tracker import Begun, SessionOrchestration


@dataclass(frozen=True, slots=True)
class Recorded:
    """A stored call."""

    call_id: str
    agent_id: str | None
    kind: str
    parent_agent_id: str | None = None
    answer: Message | None = None
    """None if the harness cannot have acted on an answer."""
    finish_reason: str = ""


def recall(rollout_id: str, events: Sequence[EventRow], calls: Sequence[Recorded]) -> SessionOrchestration:
    """Rebuild the state from a session's `events`, in order of time, and `calls`, in the order they began."""
    # Calls first: the events refer to agents and answers that the calls define.
    machine = SessionOrchestration(rollout_id)
    began = {event.id: event for event in events if event.kind == "llm_call"}
    acted = {event.call_id for event in events if event.kind == "tool_call"}
    for call in calls:
        if call.call_id in began and call.agent_id is not None and call.kind == "policy":
            _recall_call(machine, call, call.agent_id, began[call.call_id], acted=call.call_id in acted)
    answers = {call.call_id: call.answer for call in calls}
    for event in events:
        machine.now = max(machine.now, event.t)
        if event.agent_id is None:
            continue
        if event.kind.startswith("tool_"):
            _recall_tool(machine, event, event.agent_id, answers.get(event.call_id or ""))
        else:
            _recall_agent(machine, event, event.agent_id)
    return machine


def _recall_call(
    machine: SessionOrchestration, call: Recorded, agent_id: str, began: EventRow, *, acted: bool
) -> None:
    member = machine.members.get(agent_id)
    sibling = "siblings" in began.attributes
    member.parent = member.parent or call.parent_agent_id
    member.last_call = call.call_id
    if call.answer is None:
        machine.begun[call.call_id] = Begun(agent_id, sibling)
        return
    member.last_reply = Reply(call.call_id, began.t, call.answer, call.finish_reason, sibling)
    if sibling and member.last_reply.acts and not acted:
        machine.held[call.call_id] = agent_id, member.last_reply


def _recall_tool(
    machine: SessionOrchestration, event: EventRow, agent_id: str, answer: Message | None
) -> None:
    attributes = event.attributes
    if event.kind == "tool_call":
        if answer is not None and event.call_id is not None:
            call = replace(answer.tool_calls[attributes["index"]], id=attributes["tool_call_id"])
            machine.tools.add(OpenCall(event.id, event.call_id, agent_id, call, event.t))
        return
    if "given_id" in attributes:
        machine.tools.keep(agent_id, attributes["given_id"], attributes["content_hash"])
    if event.evidence != UNMATCHED.text:
        machine.tools.close(attributes["tool_call_id"])


def _recall_agent(machine: SessionOrchestration, event: EventRow, agent_id: str) -> None:
    target = event.target_agent_id
    tool_call_id = event.attributes.get("tool_call_id")
    if event.kind == "spawn" and target is not None:
        machine.tools.claim(tool_call_id or "", target)
        machine.members.start(target, agent_id, tool_call_id)
    elif event.kind == "return":
        machine.members.come_back(agent_id)
    elif event.kind == "despawn":
        machine.members.get(agent_id).ended = True
    elif event.kind == "orchestrator_decision" and event.call_id is not None:
        machine.decisions[event.call_id] = event.id
        if target is not None:
            machine.members.hand_over(agent_id, target)
            machine.tools.hand_over(event.call_id, target)
