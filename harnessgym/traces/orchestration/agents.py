"""The agents of a session, as seen in its traffic: who started whom, each one's last answer and state.

Texts are the evidence: whether a tool call started an agent, and whether an agent's answer came back.
Harnesses wrap texts into their own templates, break lines and encode them as JSON; the comparison ignores
that.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from harnessgym.message import Message, ToolCall
from harnessgym.store.edges import EdgeRow

_LEAST = 8
"""Minimum length of a text whose match is unlikely to be chance."""
_LEAST_FAR = 12
"""The same for a match in a text that need not be related."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_STARTS = frozenset((
    "agent", "agents", "assign", "delegate", "dispatch", "handoff", "handover", "researcher", "spawn",
    "specialist", "subagent", "task", "transfer", "worker",
))  # fmt: skip
_MANAGES = frozenset((
    "cancel", "close", "complete", "create", "finish", "get", "kill", "list", "output", "read", "resume",
    "send", "status", "stop", "todo", "todos", "update", "wait", "write",
))  # fmt: skip
_DETACHES = frozenset(("spawn", "background"))


@lru_cache(maxsize=1024)
def starts_agent(tool: str) -> bool:
    """Return whether a tool's name says that it starts an agent.

    `Task`, `spawn_agent` and `transfer_to_coder` do; `wait_agent` does not.
    """
    words = _words(tool)
    return bool(words & _STARTS) and not words & _MANAGES


def detaches(call: ToolCall) -> bool:
    """Return whether a call starts an agent in the background, so its result is not the agent's answer."""
    arguments = call.parsed
    has_flag = isinstance(arguments, dict) and any(
        value is True for key, value in arguments.items() if _words(key) & _DETACHES
    )
    return has_flag or bool(_words(call.name) & _DETACHES)


def texts_of(call: ToolCall) -> list[str]:
    """Return the texts in a call's arguments, longest first. Arguments that are not JSON are one text."""
    texts = list[str]()
    rest = [call.parsed]
    while rest:
        value: Any = rest.pop()
        if isinstance(value, str):
            texts.append(value.strip())
        elif isinstance(value, dict):
            rest.extend(value.values())
        elif isinstance(value, list):
            rest.extend(value)
    return sorted((text for text in texts if text), key=len, reverse=True)


def shared(texts: Iterable[str], heard: str, *, named: bool) -> int:
    """Return the length of the longest of a call's `texts` that an agent `heard` first, or 0.

    `named`: the tool's name says that it starts agents, so shorter texts count too.
    """
    heard = _plain(heard)
    least = 3 if named else _LEAST
    text_lengths = (len(text) for text in map(_plain, texts) if len(text) >= least and text in heard)
    whole = (len(heard) for text in map(_plain, texts) if len(heard) >= _LEAST_FAR and heard in text)
    return max(*text_lengths, *whole, 0, 0)


def came_back(texts: Sequence[str], result: str, *, far: bool = False) -> bool:
    """Return whether one of an agent's texts is in a `result`. `far`: the result may be unrelated."""
    least = _LEAST_FAR if far else 1
    return any(len(text) >= least and _holds(result, text) for text in texts)


def _holds(result: str, text: str) -> bool:
    if text in result:
        return True
    written = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    return any(form in result for form in written) or _plain(text) in _plain(result)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORD.findall(name))


@dataclass(frozen=True, slots=True)
class Reply:
    """An agent's last answer."""

    call_id: str
    t: float
    message: Message
    finish_reason: str
    sibling: bool = False
    """Whether it is one of several answers to one request."""

    @property
    def acts(self) -> bool:
        """Whether it calls tools."""
        return bool(self.message.tool_calls)

    @property
    def texts(self) -> list[str]:
        """Texts in which another agent may receive it: its text and longer arguments of its tool calls."""
        text = self.message.content.strip()
        call_texts = [text for call in self.message.tool_calls for text in texts_of(call) if len(text) >= 8]
        return ([text] if text else []) + call_texts

    def is_in(self, history: Message) -> bool:
        """Return whether a message of a history is this answer."""
        calls = [call.name for call in self.message.tool_calls]
        return (
            history.content.strip() == self.message.content.strip()
            and [call.name for call in history.tool_calls] == calls
        )


@dataclass(slots=True)
class Agent:
    """One agent."""

    id: str
    parent: str | None = None
    spawned: bool = False
    """Whether another agent started it. An agent that took over by a handoff was not spawned."""
    open: bool = False
    """Whether it was started and has not returned yet."""
    ended: bool = False
    tool_call_id: str | None = None
    """The tool call that started it last."""
    last_call: str | None = None
    last_reply: Reply | None = None
    successor: str | None = None
    """The agent that it handed over to."""
    children: list[str] = field(default_factory=list)
    """Agents that it started and that have not returned yet."""
    reads: list[EdgeRow] = field(default_factory=list)
    """Edges to its last call, from the events that the call reacted to."""

    @property
    def resting(self) -> Reply | None:
        """Its last answer, if it has made no request since."""
        return (
            self.last_reply
            if self.last_reply is not None and self.last_reply.call_id == self.last_call
            else None
        )


@dataclass
class Members:
    """The agents of one session, by id."""

    by_id: dict[str, Agent] = field(default_factory=dict)

    def get(self, agent_id: str) -> Agent:
        """Return an agent. Adds it if it is new."""
        member = self.by_id.get(agent_id)
        if member is None:
            member = self.by_id[agent_id] = Agent(agent_id)
        return member

    def start(self, agent_id: str, parent: str | None, tool_call_id: str | None) -> None:
        """Record that an agent is started, or started again."""
        member = self.get(agent_id)
        member.spawned = member.open = True
        member.ended = False
        member.tool_call_id = tool_call_id
        member.parent = parent
        if parent is not None and agent_id not in self.get(parent).children:
            self.get(parent).children.append(agent_id)

    def come_back(self, agent_id: str) -> None:
        """Record that an agent's answer reached the agent that started it."""
        member = self.get(agent_id)
        member.open = False
        member.ended = True
        if member.parent is not None and agent_id in self.get(member.parent).children:
            self.get(member.parent).children.remove(agent_id)

    def hand_over(self, agent_id: str, successor: str) -> None:
        """Record that another agent continues in an agent's place."""
        self.get(agent_id).successor = successor
        # Agents may hand over in a circle. The one that works now is the end of the chain.
        self.get(successor).successor = None

    def last(self, agent_id: str) -> Agent:
        """Return the agent that continues in an agent's place, or the agent itself."""
        member = self.get(agent_id)
        for _ in range(len(self.by_id)):
            if member.successor is None:
                break
            member = self.get(member.successor)
        return member

    def leader(self) -> Agent | None:
        """Return the agent that answered last among those that no other agent started."""
        own = [member for member in self.by_id.values() if not member.spawned and member.resting is not None]
        return max(own, key=lambda member: member.last_reply.t if member.last_reply else 0.0, default=None)
