"""Compares two rollouts branch by branch: the first message and the first token that differ.

A branch is a conversation that no call continues; side calls are not branches. Each branch of the first
rollout is compared with the branch of the second that shares the most tokens with it, of the same agent if
there is one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harnessgym.message import Message
from harnessgym.tokens import IdArray
from harnessgym.traces.difference import difference
from harnessgym.traces.export import TracedRollout
from harnessgym.traces.token_lines import TokenRows

_SIDE = ("side", "count")
_UNFINISHED = ("intent", "error")
_AROUND = 12
"""Number of tokens shown before a difference, and of each side of it."""


@dataclass(frozen=True, slots=True)
class MessageDifference:
    """The first message that differs."""

    index: int
    """Index in the conversation."""
    roles: tuple[str | None, str | None]
    """None: that conversation has already ended."""
    diff: str


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """The first token that differs."""

    position: int
    lengths: tuple[int, int]
    """Number of tokens of each branch."""
    ids: tuple[int | None, int | None]
    calls: tuple[int | None, int | None]
    """Numbers of the calls that sampled them; None for prompt tokens."""
    before: str
    """Text before the difference."""
    texts: tuple[str, str]
    """Text of each branch from the difference on."""


@dataclass(frozen=True, slots=True)
class BranchDifference:
    """The comparison of two branches, or a branch without a counterpart."""

    ends: tuple[int | None, int | None]
    """Numbers of the calls that they end with."""
    agents: tuple[str | None, str | None]
    message: MessageDifference | None
    token: TokenDifference | None

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return None not in self.ends and self.message is None and self.token is None


@dataclass(frozen=True, slots=True)
class _Branch:
    number: int
    call_id: str
    policy_id: str | None
    agent: str
    ids: IdArray
    sampled: tuple[tuple[int, int, int], ...]
    """(start, end, number of the call) of the sampled ranges."""


def compare_rollouts(one: TracedRollout, other: TracedRollout) -> list[BranchDifference]:
    """Compare every branch of the first rollout with its counterpart, then list those of the second without.

    A branch of the second is the counterpart of at most one branch.
    """
    left, right = _branches(one), _branches(other)
    rows = TokenRows(one)
    out = list[BranchDifference]()
    for branch in left:
        counterpart = max(right, key=lambda item: _likeness(branch, item), default=None)
        if counterpart is None or not any(_likeness(branch, counterpart)):
            out.append(BranchDifference((branch.number, None), (branch.agent, None), None, None))
            continue
        right.remove(counterpart)
        conversations = (
            one.transcript.conversation(branch.call_id),
            other.transcript.conversation(counterpart.call_id),
        )
        ends = (branch.number, counterpart.number)
        agents = (branch.agent, counterpart.agent)
        out.append(
            BranchDifference(
                ends,
                agents,
                _messages(*conversations),
                _tokens(branch, counterpart, rows.text(branch.policy_id)),
            )
        )
    return out + [BranchDifference((None, item.number), (None, item.agent), None, None) for item in right]


def _branches(rollout: TracedRollout) -> list[_Branch]:
    calls = rollout.graph.calls
    policy = {
        name: call
        for name, call in calls.items()
        if call.kind not in _SIDE and call.status not in _UNFINISHED
    }
    continued = {call.parent_call_id for call in policy.values()}
    numbers = TokenRows(rollout).numbers
    agents = {agent.id: agent.name for agent in rollout.graph.agents}
    owners = {
        call.completion_segment: numbers[call.id]
        for call in calls.values()
        if call.completion_segment is not None
    }
    out = []
    for call in policy.values():
        if call.id not in continued:
            ids, sampled = _path(rollout, call.completion_segment or call.prompt_segment, owners)
            agent = agents.get(call.agent_id or "", "")
            out.append(_Branch(numbers[call.id], call.id, call.policy_id, agent, ids, sampled))
    return out


def _path(
    rollout: TracedRollout, segment_id: str, owners: dict[str, int]
) -> tuple[IdArray, tuple[tuple[int, int, int], ...]]:
    """Return the tokens from the root through a segment, and the ranges that calls sampled."""
    path = []
    at = rollout.segments.get(segment_id)
    while at is not None:
        path.append(at)
        at = rollout.segments.get(at.parent_id or "")
    ids = []
    sampled = []
    start = 0
    for segment in reversed(path):
        ids.append(np.asarray(segment.ids, np.int32))
        if segment.id in owners:
            sampled.append((start, start + len(segment.ids), owners[segment.id]))
        start += len(segment.ids)
    return np.concatenate(ids) if ids else np.empty(0, np.int32), tuple(sampled)


def _likeness(one: _Branch, other: _Branch) -> tuple[bool, int]:
    return one.agent == other.agent, _common(one.ids, other.ids)


def _common(one: IdArray, other: IdArray) -> int:
    shorter = min(len(one), len(other))
    differs = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differs[0]) if len(differs) else shorter


def _messages(one: Sequence[Message], other: Sequence[Message]) -> MessageDifference | None:
    pairs = enumerate(zip(one, other, strict=False))
    at = next((at for at, (left, right) in pairs if left.digest != right.digest), min(len(one), len(other)))
    if at == len(one) == len(other):
        return None
    left, right = (messages[at] if at < len(messages) else None for messages in (one, other))
    diff = difference("" if left is None else _as_text(left), "" if right is None else _as_text(right))
    return MessageDifference(
        at, (None if left is None else left.role, None if right is None else right.role), diff
    )


def _tokens(one: _Branch, other: _Branch, text: Callable[[int], str | None]) -> TokenDifference | None:
    at = _common(one.ids, other.ids)
    if at == len(one.ids) == len(other.ids):
        return None

    def written(ids: IdArray) -> str:
        return "".join(known if (known := text(token)) is not None else f" {token}" for token in ids.tolist())

    sides = (one, other)
    return TokenDifference(
        at,
        (len(one.ids), len(other.ids)),
        (_at(one.ids, at), _at(other.ids, at)),
        (_sampler(one, at), _sampler(other, at)),
        written(one.ids[max(0, at - _AROUND) : at]),
        (written(sides[0].ids[at : at + _AROUND]), written(sides[1].ids[at : at + _AROUND])),
    )


def _at(ids: IdArray, position: int) -> int | None:
    return int(ids[position]) if position < len(ids) else None


def _sampler(branch: _Branch, position: int) -> int | None:
    return next((number for start, end, number in branch.sampled if start <= position < end), None)


def _as_text(message: Message) -> str:
    """Return a message as one text."""
    calls = "".join(f" {call.name}({call.canonical})" for call in message.tool_calls)
    return f"{message.reasoning}{message.shown_text}{calls}"
