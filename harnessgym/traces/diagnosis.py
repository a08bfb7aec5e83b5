"""Why a request does not continue what came before it: which harness habit broke the branch, and where.

Pure functions of messages and texts, so that they hold for stored requests as well as for live ones. A break
costs a training row; its class says whether the harness, its settings or the model's template is to be
changed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal

from harnessgym.message import Message, ToolCall, ToolSpec
from harnessgym.traces.difference import (
    common_ends,
    common_start,
    difference,
    only_volatile,
    without_volatile,
)
from harnessgym.traces.forest import replay_form

BreakClass = Literal[
    "nonce",
    "stripped_reasoning",
    "tool_reserialisation",
    "bpe_drift",
    "stop_string",
    "length_cut",
    "compaction",
    "edited_history",
    "sub_agent",
    "handoff",
    "template",
    "new_root",
    "dropped_messages",
]
"""nonce: a date, id or counter changed inside an otherwise equal system or user message.
stripped_reasoning: reasoning is missing where the policy had written some.
tool_reserialisation: a tool call comes back in another form.
bpe_drift: the same text was rendered as other tokens.
stop_string: the answer ended at a stop string, so its tokens say more than the client was shown.
length_cut: the answer was cut off before its end of turn.
compaction: the conversation was summarised.
edited_history: a message was changed, or an answer put in that the policy did not give.
sub_agent: another system prompt or other tools, and a history of its own.
handoff: another agent goes on with the conversation: the system prompt is another, dates and ids aside
(where there is none: the tools are others), and the rest is that of an earlier call, with at least one
answer of the policy in it. template: the chat template writes something else than was sampled. new_root:
another conversation with the same system prompt and tools. dropped_messages: messages were left out of the
middle, or an answer was."""

_SUMMARY = re.compile(
    r"summar(?:y|i[sz]e)|compact(?:ed|ion)|continued from a previous|previous conversation|conversation so far"
    r"|context (?:limit|window|checkpoint)|<state_snapshot>",
    re.IGNORECASE,
)
_QUOTED = 40
"""A user message that quotes this many characters or more of an answer carries it on."""


@dataclass(frozen=True, slots=True)
class Break:
    """Why a request could not continue what came before it."""

    kind: BreakClass
    detail: str
    """The first message that differs, by index and role, the call it was compared with, and a short
    difference."""


@dataclass(frozen=True, slots=True)
class CallConversation:
    """What one call was asked and, once that is known, what it answered."""

    call_id: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    answer: Message | None = None
    turns: int | None = None
    """How many of the assistant's messages the policy gave, the answer aside; those before them are
    examples. None: all."""

    @property
    def whole(self) -> tuple[Message, ...]:
        """Question and answer."""
        return self.messages if self.answer is None else (*self.messages, self.answer)


def diagnose(
    messages: Sequence[Message], tools: Sequence[ToolSpec], earlier: Sequence[CallConversation]
) -> Break | None:
    """Where a request leaves the earlier conversation that it is most like, and what that looks like.

    `earlier` is in order, newest first. None if there is nothing to compare with, or if the request is the
    beginning of an earlier conversation.
    """
    if not earlier:
        return None
    near, at = _nearest(messages, tools, earlier)
    if at == len(messages) and list(tools) == list(near.tools):
        return None
    taken = _taken_over(messages, tools, earlier)
    if taken is None:
        kind, why = _classify(messages, tools, near, at, earlier)
    else:
        (near, changed), at = taken, _leading(messages, taken[0].whole)
        summary = _asks_for_summary(messages, tools)
        kind, why = (
            ("compaction", summary)
            if summary
            else ("handoff", f"another agent goes on with its history: {changed}")
        )
    if at >= len(messages):
        return Break(kind, f"all {at} messages are those of call {near.call_id}: {why}")
    ours = messages[at]
    theirs = near.whole[at] if at < len(near.whole) else None
    detail = f"message {at} ({ours.role}), compared with call {near.call_id}: {why}"
    shown = "" if theirs is None else "\n" + difference(_spoken(theirs), _spoken(ours))
    return Break(kind, detail + shown)


def diagnose_rendering(sampled: str, rendered: str, answer: Message) -> tuple[BreakClass, str]:
    """Why a template writes `rendered` from where the policy sampled `sampled`, which says `answer`: class
    and reason.
    """
    if rendered.startswith(sampled):
        return "bpe_drift", "the same text, rendered as other tokens"
    shared = common_start(sampled, rendered)
    reasoned = _end(sampled, answer.reasoning, 0)
    start = sampled.find(answer.content, reasoned) if answer.content else reasoned
    if shared < reasoned or (shared < start and sampled[:start].strip()):
        return "stripped_reasoning", "the template leaves the reasoning out"
    if answer.tool_calls and shared >= _end(sampled, answer.content, reasoned):
        return "tool_reserialisation", "the template writes the tool call in another way"
    return "template", "the template writes something else than was sampled"


def _classify(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    near: CallConversation,
    at: int,
    earlier: Sequence[CallConversation],
) -> tuple[BreakClass, str]:
    """The class of a break at message `at`, and its reason."""
    ours = messages[at] if at < len(messages) else None
    theirs = near.whole[at] if at < len(near.whole) else None
    if ours is not None and theirs is not None and _is_nonce(ours, theirs):
        return "nonce", "a date, id or counter has changed"
    if why := _summarised(messages, tools, near, at) or _compacted(messages, tools, near, at, earlier):
        return "compaction", why
    if _is_root(messages, near.whole, at):
        return _another_root(messages, tools, near, at)
    if ours is None or theirs is None:
        return "edited_history", _tools_changed(tools, near.tools) or "an answer that the policy did not give"
    return _changed_message(ours, theirs, near.whole[at:])


def _taken_over(
    messages: Sequence[Message], tools: Sequence[ToolSpec], earlier: Sequence[CallConversation]
) -> tuple[CallConversation, str] | None:
    """The conversation of another agent that a request goes on with, and in what the agents differ; None if
    there is none.

    It has more answers in common with the request than any conversation of the same agent, and one of them is
    the policy's.
    """
    own = 0
    others = list[tuple[int, CallConversation, str]]()
    for conversation in earlier:
        answers, whole = _history(messages, conversation)
        changed = _other_agent(messages, tools, conversation) if answers else ""
        if not changed:
            own = max(own, answers)
        elif whole:
            others.append((answers, conversation, changed))
    if not others:
        return None
    answers, near, changed = max(others, key=itemgetter(0))
    return (near, changed) if answers > own else None


def _history(messages: Sequence[Message], conversation: CallConversation) -> tuple[int, bool]:
    """How many answers a request shares with a conversation, whatever the system prompts; and whether it goes
    on with its history: the policy gave one of these answers, and one of the two is the beginning of the
    other.
    """
    ours = messages[_opening(messages) :]
    theirs = conversation.whole[_opening(conversation.whole) :]
    shared = _leading(ours, theirs)
    answers = _answers(theirs[:shared])
    asked = _answers(conversation.messages)
    examples = 0 if conversation.turns is None else max(0, asked - conversation.turns)
    return answers, answers > examples and shared == min(len(ours), len(theirs))


def _other_agent(
    messages: Sequence[Message], tools: Sequence[ToolSpec], conversation: CallConversation
) -> str:
    """In what a request's agent differs from a conversation's; empty if it is the same. One that is merely
    offered other tools under its system prompt is the same.
    """
    ours, theirs = (_instructions(each) for each in (messages, conversation.messages))
    changed = (
        ["another system prompt"]
        if ours != theirs and without_volatile(ours) != without_volatile(theirs)
        else []
    )
    if set(_names(tools)) != set(_names(conversation.tools)) and (changed or not ours):
        changed.append(_tools_changed(tools, conversation.tools))
    return ", ".join(changed)


def _opening(messages: Sequence[Message]) -> int:
    """How many system messages open a conversation."""
    return next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))


def _instructions(messages: Sequence[Message]) -> str:
    return "\n\n".join(message.without_nonce().content for message in messages[: _opening(messages)])


def _answers(messages: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in messages)


def _changed_message(ours: Message, theirs: Message, rest: Sequence[Message]) -> tuple[BreakClass, str]:
    """The class of a message that is another than it was; `rest` is the earlier conversation from there
    on.
    """
    skipped = next((count for count, other in enumerate(rest) if _same(ours, other)), None)
    if skipped is not None:
        return "dropped_messages", f"{skipped} messages are left out"
    if theirs.role != "assistant":
        return "edited_history", f"the {theirs.role} message has changed"
    return (
        _changed_answer(theirs, ours)
        if ours.role == "assistant"
        else ("dropped_messages", "the answer is left out")
    )


def _is_nonce(ours: Message, theirs: Message) -> bool:
    same_kind = ours.role == theirs.role and ours.role in ("system", "user") and ours.images == theirs.images
    return same_kind and only_volatile(theirs.content, ours.content)


def _nearest(
    messages: Sequence[Message], tools: Sequence[ToolSpec], earlier: Sequence[CallConversation]
) -> tuple[CallConversation, int]:
    """The conversation that shares most leading messages, and how many.

    Of several it is the one whose next message is most alike, then one with the same tools, then the newest.
    """
    shared = [_leading(messages, conversation.whole) for conversation in earlier]
    best = max(shared)
    candidates = [conversation for conversation, count in zip(earlier, shared, strict=True) if count == best]

    def rank(conversation: CallConversation) -> tuple[float, bool]:
        likeness = _likeness(messages[best], conversation.whole[best:]) if best < len(messages) else 0.0
        return likeness, list(conversation.tools) == list(tools)

    return max(candidates, key=rank), best


def _leading(messages: Sequence[Message], whole: Sequence[Message]) -> int:
    pairs = zip(messages, whole, strict=False)
    return next(
        (at for at, (one, other) in enumerate(pairs) if not _same(one, other)), min(len(messages), len(whole))
    )


def _likeness(message: Message, rest: Sequence[Message]) -> float:
    """How much of two messages is a common beginning or end, from 0 to 1."""
    if not rest or rest[0].role != message.role:
        return 0.0
    one = message.content
    other = rest[0].content
    return sum(common_ends(one, other)) / (max(len(one), len(other)) or 1)


def _same(one: Message, other: Message) -> bool:
    """Whether two messages are equal, or one answer in two of the forms in which clients send it back."""
    if one.digest == other.digest:
        return True
    if one.role != "assistant" or other.role != "assistant":
        return False
    one = replay_form(one)
    other = replay_form(other)
    if not one.reasoning or not other.reasoning:
        one = replace(one, reasoning="")
        other = replace(other, reasoning="")
    return one.digest == other.digest


def _occurs(message: Message, among: Sequence[Message]) -> bool:
    return any(_same(message, other) for other in among)


def _is_root(messages: Sequence[Message], whole: Sequence[Message], at: int) -> bool:
    """Whether a request that has `at` messages in common with an earlier conversation does not go on with
    that one.
    """
    answers = [message for message in messages if message.role == "assistant"]
    opening = all(message.role == "system" for message in messages[:at])
    return at == len(messages) > 0 == len(answers) or (
        opening and not any(_occurs(answer, whole) for answer in answers)
    )


def _another_root(
    messages: Sequence[Message], tools: Sequence[ToolSpec], near: CallConversation, at: int
) -> tuple[BreakClass, str]:
    """The class of a conversation that shares no more than its system prompt with an earlier one."""
    if changed := _tools_changed(tools, near.tools):
        return "sub_agent", changed
    systems = [message.content for message in messages if message.role == "system"]
    others = [message.content for message in near.messages if message.role == "system"]
    if at == 0 and systems[:1] != others[:1]:
        return "sub_agent", "another system prompt"
    return "new_root", "another conversation with the same system prompt and tools"


def _summarised(
    messages: Sequence[Message], tools: Sequence[ToolSpec], near: CallConversation, at: int
) -> str:
    """Why a request asks for a summary of an earlier conversation; empty if it does not."""
    return _asks_for_summary(messages, tools) if near.tools and at == len(near.whole) < len(messages) else ""


def _asks_for_summary(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
    """What shows that a request asks for a summary; empty if nothing does."""
    return (
        "it asks for a summary, without the tools" if not tools and _speaks_of_summary(messages[-1]) else ""
    )


def _compacted(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    near: CallConversation,
    at: int,
    earlier: Sequence[CallConversation],
) -> str:
    """Why a request is what is left of a summarised conversation; empty if it is not."""
    longest = max((len(other.whole) for other in earlier if _same_system(messages, other.whole)), default=0)
    new = [message for message in messages[at:] if message.role == "user"]
    if longest < 4 or len(messages) >= longest or not new:
        return ""
    fewer = f"{longest} messages became {len(messages)}"
    for conversation in earlier:
        said = conversation.answer.content.strip() if conversation.answer is not None else ""
        if len(said) >= _QUOTED and any(said in message.content for message in new):
            return f"{fewer}, and one carries on what call {conversation.call_id} said"
    if 2 * len(messages) <= longest and any(_speaks_of_summary(message) for message in new[:2]):
        return f"{fewer}, which speak of a summary"
    if (
        2 * len(messages) <= longest
        and tools
        and near.tools
        and not earlier[0].tools
        and earlier[0] is not near
    ):
        return f"{fewer} after call {earlier[0].call_id}, which had no tools"
    return ""


def _same_system(messages: Sequence[Message], whole: Sequence[Message]) -> bool:
    """Whether two conversations have the same system prompt, or none."""
    first = messages[0]
    other = whole[0]
    return _same(first, other) if "system" in (first.role, other.role) else True


def _speaks_of_summary(message: Message) -> bool:
    return message.role == "user" and _SUMMARY.search(message.content) is not None


def _changed_answer(theirs: Message, ours: Message) -> tuple[BreakClass, str]:
    """The class of an answer that came back as something else."""
    old, new = replay_form(theirs), replay_form(ours)
    if replace(old, reasoning="").digest == replace(new, reasoning="").digest:
        if new.reasoning in old.reasoning:
            return "stripped_reasoning", "part of the reasoning is missing"
        return "edited_history", "the reasoning has changed"
    if old.tool_calls and _flattened(old, new):
        return "tool_reserialisation", "the tool calls came back as text"
    if old.content == new.content and len(old.tool_calls) == len(new.tool_calls):
        pairs = list(zip(old.tool_calls, new.tool_calls, strict=True))
        if all(_alike(one, other) for one, other in pairs):
            return "tool_reserialisation", "the arguments of a tool call came back in another form"
        return "edited_history", "a tool call has changed"
    return "edited_history", "the answer has changed"


def _flattened(old: Message, new: Message) -> bool:
    """Whether the tool calls of an answer now stand in its text."""
    return len(new.tool_calls) < len(old.tool_calls) and all(
        call.name in new.content for call in old.tool_calls
    )


def _alike(one: ToolCall, other: ToolCall) -> bool:
    """Whether two calls are one whose arguments were written in other types, quoted otherwise, or filled
    up with defaults.
    """
    if one.name != other.name:
        return False
    old, new = one.parsed, other.parsed
    if isinstance(old, dict) and isinstance(new, dict):
        shared = old.keys() & new.keys()
        few = min(len(old), len(new))
        return len(shared) == few and all(
            _letters(str(old[key])) == _letters(str(new[key])) for key in shared
        )
    return _letters(one.arguments) == _letters(other.arguments)


def _letters(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _tools_changed(tools: Sequence[ToolSpec], others: Sequence[ToolSpec]) -> str:
    """How the tools differ; empty if they do not."""
    if list(tools) == list(others):
        return ""
    new = _names(tools)
    old = _names(others)
    named = [
        *(f"+{name}" for name in new if name not in old),
        *(f"-{name}" for name in old if name not in new),
    ]
    return (
        f"other tools: {' '.join(named[:12])}" if named else "a tool's description or their order has changed"
    )


def _names(tools: Sequence[ToolSpec]) -> list[str]:
    return [tool.name for tool in tools]


def _spoken(message: Message) -> str:
    """All that a message says, as text."""
    return "\n".join(_pieces(message))


def _pieces(message: Message) -> Iterator[str]:
    if message.reasoning:
        yield f"<think>{message.reasoning}</think>"
    if message.content or not message.tool_calls:
        yield message.shown_text
    for call in message.tool_calls:
        yield f"{call.name}({call.arguments})"


def _end(text: str, part: str, start: int) -> int:
    """Where `part` ends in `text`; `start` if it is not there."""
    found = text.find(part, start) if part else -1
    return start if found < 0 else found + len(part)
