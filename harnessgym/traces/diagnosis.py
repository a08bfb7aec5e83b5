"""Diagnoses why a request does not continue earlier calls: what the harness changed, and where.

These are pure functions of messages and texts, so they work for stored requests as well as for live ones. A
break costs a training row. Its class says whether to change the harness, its settings or the model's
template.
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
"""nonce: a date, id or counter changed in an otherwise equal system or user message.
stripped_reasoning: reasoning that the policy wrote is missing.
tool_reserialisation: a tool call came back in a different form.
bpe_drift: the same text was tokenised differently.
stop_string: the answer ended at a stop string, so its tokens contain more than the client saw.
length_cut: the answer was cut off before its end of turn.
compaction: the conversation was summarised.
edited_history: a message was changed, or an answer was inserted that the policy did not give.
sub_agent: a different system prompt or different tools, and a history of its own.
handoff: another agent continues the conversation. Its system prompt differs in more than dates and ids (or,
without a system prompt, its tools differ). The rest is that of an earlier call and has at least one answer of
the policy.
template: the chat template renders an answer differently from what was sampled.
new_root: a separate conversation with the same system prompt and tools.
dropped_messages: messages in the middle, or an answer, were left out."""

_SUMMARY = re.compile(
    r"summar(?:y|i[sz]e)|compact(?:ed|ion)|continued from a "
    r"previous|previous conversation|conversation so far"
    r"|context (?:limit|window|checkpoint)|<state_snapshot>",
    re.IGNORECASE,
)
_ALIKE = 0.99
"""Likeness from which on the newest conversation is the nearest one."""
_QUOTED = 40
"""A user message that quotes an answer of at least this many characters carries it over."""


@dataclass(frozen=True, slots=True)
class Break:
    """Why a request could not continue what came before it."""

    kind: BreakClass
    detail: str
    """The first message that differs (index, role), the call it was compared with, and a short diff."""


@dataclass(frozen=True, slots=True)
class CallConversation:
    """The messages of one call and its answer, if that is known."""

    call_id: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    answer: Message | None = None
    turns: int | None = None
    """How many assistant messages in `messages` the policy wrote. Those before them are examples from the
    prompt. None: all."""

    @property
    def whole(self) -> tuple[Message, ...]:
        """The messages and the answer."""
        return self.messages if self.answer is None else (*self.messages, self.answer)


def diagnose(
    messages: Sequence[Message], tools: Sequence[ToolSpec], earlier: Sequence[CallConversation]
) -> Break | None:
    """Return where and why a request departs from the earlier conversation that it is most similar to.

    `earlier` is ordered newest first. Returns None if there is nothing to compare with, or if the request is
    the beginning of an earlier conversation.
    """
    if not earlier:
        return None
    near, at = _nearest(messages, tools, earlier)
    if at == len(messages) and list(tools) == list(near.tools):
        return None
    takeover = _taken_over(messages, tools, earlier)
    if takeover is None:
        kind, why = _classify(messages, tools, near, at, earlier)
    else:
        (near, changed), at = takeover, _leading(messages, takeover[0].whole)
        summary = _asks_for_summary(messages, tools)
        kind, why = (
            ("compaction", summary)
            if summary
            else ("handoff", f"another agent continues its history: {changed}")
        )
    if at >= len(messages):
        return Break(kind, f"all {at} messages are those of call {near.call_id}: {why}")
    ours = messages[at]
    theirs = near.whole[at] if at < len(near.whole) else None
    detail = f"message {at} ({ours.role}), compared with call {near.call_id}: {why}"
    shown = "" if theirs is None else "\n" + difference(_spoken(theirs), _spoken(ours))
    return Break(kind, detail + shown)


def diagnose_rendering(sampled: str, rendered: str, answer: Message) -> tuple[BreakClass, str]:
    """Return the class and reason of a template rendering `rendered` where the policy sampled `sampled`.

    `answer` is the parsed form of `sampled`.
    """
    if rendered.startswith(sampled):
        return "bpe_drift", "the same text, rendered as other tokens"
    shared = common_start(sampled, rendered)
    reasoned = _end(sampled, answer.reasoning, 0)
    start = sampled.find(answer.content, reasoned) if answer.content else reasoned
    if shared < reasoned or (shared < start and sampled[:start].strip()):
        return "stripped_reasoning", "the template leaves the reasoning out"
    if answer.tool_calls and shared >= _end(sampled, answer.content, reasoned):
        return "tool_reserialisation", "the template writes the tool call in another form"
    return "template", "the template writes something else than was sampled"


def _classify(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    near: CallConversation,
    at: int,
    earlier: Sequence[CallConversation],
) -> tuple[BreakClass, str]:
    """Return the class of a break at message `at` and its reason."""
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
    """Return the conversation of another agent that a request continues, and how the agents differ.

    It shares more answers with the request than any conversation of the same agent does, and the policy gave
    at least one of them. Returns None if there is no such conversation.
    """
    own = 0
    others = list[tuple[int, CallConversation, str]]()
    changes = [_other_agent(messages, tools, conversation) for conversation in earlier]
    if not any(changes):
        return None
    for conversation, changed in zip(earlier, changes, strict=True):
        answers, whole = _history(messages, conversation)
        if not (answers and changed):
            own = max(own, answers)
        elif whole:
            others.append((answers, conversation, changed))
    if not others:
        return None
    answers, near, changed = max(others, key=itemgetter(0))
    return (near, changed) if answers > own else None


def _history(messages: Sequence[Message], conversation: CallConversation) -> tuple[int, bool]:
    """Return how many answers a request shares with a conversation, and whether it continues its history.

    System prompts are ignored. The request continues the history if the policy gave at least one of the
    shared answers, and if one of the two is a prefix of the other.
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
    """Return how a request's agent differs from a conversation's; empty if it is the same agent.

    With the same system prompt it is the same agent, even if it is offered other tools.
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
    """Return how many system messages a conversation begins with."""
    return next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))


def _instructions(messages: Sequence[Message]) -> str:
    return "\n\n".join(message.without_nonce().content for message in messages[: _opening(messages)])


def _answers(messages: Sequence[Message]) -> int:
    return sum(message.role == "assistant" for message in messages)


def _changed_message(ours: Message, theirs: Message, rest: Sequence[Message]) -> tuple[BreakClass, str]:
    """Return the class of a changed message and its reason. `rest` is the earlier conversation from it on."""
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
    """Return the conversation that shares the most leading messages, and how many.

    Among equals, prefers the one whose next message is most similar, then the same tools, then the newest.
    """
    shared = [_leading(messages, conversation.whole) for conversation in earlier]
    best = max(shared)
    candidates = [conversation for conversation, count in zip(earlier, shared, strict=True) if count == best]

    def rank(conversation: CallConversation) -> tuple[float, bool]:
        likeness = _likeness(messages[best], conversation.whole[best:]) if best < len(messages) else 0.0
        return likeness, list(conversation.tools) == list(tools)

    # A request that only tells another time has the newest conversation as its nearest: no other need be
    # compared.
    if len(candidates) > 1 and rank(candidates[0]) >= (_ALIKE, True):
        return candidates[0], best
    return max(candidates, key=rank), best


def _leading(messages: Sequence[Message], whole: Sequence[Message]) -> int:
    shorter = min(len(messages), len(whole))
    # Requests of one conversation mostly hold the very same objects.
    if tuple(messages[:shorter]) == tuple(whole[:shorter]):
        return shorter
    pairs = zip(messages, whole, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if not _same(one, other)), shorter)


def _likeness(message: Message, rest: Sequence[Message]) -> float:
    """Return the fraction of two messages that is a common beginning or end, from 0 to 1."""
    if not rest or rest[0].role != message.role:
        return 0.0
    one = message.content
    other = rest[0].content
    return sum(common_ends(one, other)) / (max(len(one), len(other)) or 1)


def _same(one: Message, other: Message) -> bool:
    """Return whether two messages are equal, or are the same answer in two forms that clients send back."""
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
    """Return whether a request that shares `at` messages with an earlier conversation starts a new one."""
    answers = [message for message in messages if message.role == "assistant"]
    opening = all(message.role == "system" for message in messages[:at])
    return at == len(messages) > 0 == len(answers) or (
        opening and not any(_occurs(answer, whole) for answer in answers)
    )


def _another_root(
    messages: Sequence[Message], tools: Sequence[ToolSpec], near: CallConversation, at: int
) -> tuple[BreakClass, str]:
    """Return the class and reason for a conversation that shares at most its system prompt with another."""
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
    """Return why a request seems to ask for a summary of an earlier conversation; empty if it does not."""
    return _asks_for_summary(messages, tools) if near.tools and at == len(near.whole) < len(messages) else ""


def _asks_for_summary(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
    """Return the evidence that a request asks for a summary; empty if there is none."""
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
    """Return why a request seems to be a summarised conversation; empty if it does not."""
    longest = max((len(other.whole) for other in earlier if _same_system(messages, other.whole)), default=0)
    new = [message for message in messages[at:] if message.role == "user"]
    if longest < 4 or len(messages) >= longest or not new:
        return ""
    fewer = f"{longest} messages became {len(messages)}"
    for conversation in earlier:
        answer = conversation.answer.content.strip() if conversation.answer is not None else ""
        if len(answer) >= _QUOTED and any(answer in message.content for message in new):
            return f"{fewer}, and one quotes the answer of call {conversation.call_id}"
    if 2 * len(messages) <= longest and any(_speaks_of_summary(message) for message in new[:2]):
        return f"{fewer}, which mention a summary"
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
    """Return whether two conversations have the same system prompt, or both none."""
    first = messages[0]
    other = whole[0]
    return _same(first, other) if "system" in (first.role, other.role) else True


def _speaks_of_summary(message: Message) -> bool:
    return message.role == "user" and _SUMMARY.search(message.content) is not None


def _changed_answer(theirs: Message, ours: Message) -> tuple[BreakClass, str]:
    """Return the class and reason for an answer that came back changed."""
    # From the most specific explanation to the most general one: only the reasoning differs, then the form
    # of the tool calls, then anything else.
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
    """Return whether tool calls of an answer came back as part of its text."""
    return len(new.tool_calls) < len(old.tool_calls) and all(
        call.name in new.content for call in old.tool_calls
    )


def _alike(one: ToolCall, other: ToolCall) -> bool:
    """Return whether two tool calls differ only in types, quoting or added defaults of their arguments."""
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
    """Return how the tools differ; empty if they do not."""
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
    """Return everything in a message as text."""
    return "\n".join(_pieces(message))


def _pieces(message: Message) -> Iterator[str]:
    if message.reasoning:
        yield f"<think>{message.reasoning}</think>"
    if message.content or not message.tool_calls:
        yield message.shown_text
    for call in message.tool_calls:
        yield f"{call.name}({call.arguments})"


def _end(text: str, part: str, start: int) -> int:
    """Return where `part` ends in `text`; `start` if it does not occur."""
    at = text.find(part, start) if part else -1
    return start if at < 0 else at + len(part)
