"""From a request's messages to the exact tokens the engine is given: continue what was sampled wherever that
is possible.

What was sampled is never rendered again under `history="keep"`: the session's forest supplies those tokens,
and only new messages are rendered behind them. Where that is impossible the request starts a branch, and the
reason is kept.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from harnessgym.message import Message
from harnessgym.store.calls import Segment
from harnessgym.tokens import TokenIds
from harnessgym.traces.diagnosis import Break, BreakClass, diagnose, diagnose_rendering
from harnessgym.traces.difference import difference
from harnessgym.traces.forest import Attachment, Forest
from proxies.conversations import Conversations
from proxies.dialect import ModelRequest
from proxies.language import PolicyLanguage

__all__ = ["Break", "Prompt", "continue_from"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of one request."""

    ids: TokenIds
    parent: Attachment | None
    """The call whose prompt + completion is a token prefix of `ids`."""
    added: list[int]
    """What follows the parent."""
    broken: Break | None


def continue_from(
    forest: Forest,
    heads: Collection[str],
    conversations: Conversations,
    chain: Sequence[str],
    request: ModelRequest,
    language: PolicyLanguage,
    history: str,
) -> Prompt:
    """The prompt of a request whose digests are `chain`. `heads` are the digests of all leading parts of
    earlier requests.
    """
    attachment = forest.attach(chain)
    if attachment is not None and history == "keep":
        ids = forest.ids(attachment.segment_id)
        added = language.renderer.extend(
            ids, _without_nonces(request.messages[attachment.matched :]), request.tools
        )
        if added is not None:
            ids.extend(added)
            return Prompt(
                ids, attachment, added, _left(forest, attachment, chain[-1] in heads, request, conversations)
            )
    request = replace(request, messages=_without_nonces(request.messages))
    whole = language.renderer.render(request.messages, request.tools)
    parent = forest.find_prefix(whole)
    broken = None
    if attachment is not None:
        if parent is None or forest.length(parent.segment_id) < forest.length(attachment.segment_id):
            broken = _rendered(forest, attachment, whole, request, language, history, conversations)
        else:
            broken = _left(forest, attachment, chain[-1] in heads, request, conversations)
    elif parent is None and heads and chain[-1] not in heads:
        broken = diagnose(request.messages, request.tools, conversations.newest_first()) or _unseen(
            chain, heads
        )
    return Prompt(
        whole, parent, whole if parent is None else whole[forest.length(parent.segment_id) :], broken
    )


def _left(
    forest: Forest,
    attachment: Attachment,
    known: bool,
    request: ModelRequest,
    conversations: Conversations,
) -> Break | None:
    """The break of a request that continues an answer, but goes on otherwise than is known; none if it was
    asked before.
    """
    foreign = sum(message.role == "assistant" for message in request.messages[attachment.matched :])
    if known or not (foreign or forest.children.get(attachment.segment_id)):
        return None
    found = diagnose(_without_nonces(request.messages), request.tools, conversations.newest_first())
    if foreign:
        detail = f"{foreign} assistant messages from message {attachment.matched} on are not what was sampled"
        return found or Break("edited_history", detail)
    return found if found is not None and found.kind == "dropped_messages" else None


def _without_nonces(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(message.without_nonce() for message in messages)


def _unseen(chain: Sequence[str], heads: Collection[str]) -> Break:
    """The break of a request whose earlier messages are not in memory: how much of it is known is all that
    can be said.
    """
    shared = next((index + 1 for index in reversed(range(len(chain))) if chain[index] in heads), 0)
    detail = f"the first {shared} of {len(chain)} messages are known; the earlier ones were not in memory to compare"
    return Break("edited_history" if shared else "new_root", detail)


def _rendered(
    forest: Forest,
    attachment: Attachment,
    whole: Sequence[int],
    request: ModelRequest,
    language: PolicyLanguage,
    history: str,
    conversations: Conversations,
) -> Break:
    """The break of a request whose messages are known, but whose tokens cannot be those that were sampled."""
    sampled = forest.segments[attachment.segment_id].ids
    cut = _cut(attachment.call_id, sampled, language, conversations)
    path = forest.path(attachment.segment_id)
    at, segment = _divergence(path, whole)
    if cut is not None and history == "keep":
        return _told(cut, attachment.call_id, _asked(attachment.matched - 1, request), "")
    start = _start(path, segment)
    if segment.kind == "prompt" or at < start - 1:
        old, new = (
            _text(language, ids[max(0, at - 16) : at + 32])
            for ids in (forest.ids(attachment.segment_id), whole)
        )
        why = f"the template writes what comes before its answer in another way, from token {at} on"
        return Break("template", f"compared with call {attachment.call_id}: {why}\n{difference(old, new)}")
    call_id = forest.call_of(segment.id) or ""
    first = min(at, start)
    end = start + len(segment.ids)
    old = _text(language, forest.ids(attachment.segment_id)[first:end])
    new = _text(language, whole[first : end + len(segment.ids) + 64])
    cause = diagnose_rendering(old, new, language.read(segment.ids))
    if cut is not None and segment is path[-1] and cause[0] == "template":
        cause = cut
    later = sum(item.kind == "completion" for item in path[path.index(segment) + 1 :])
    index = _answer_index(request.messages[: attachment.matched], later)
    return _told(cause, call_id, _asked(index, request), difference(old, new[: len(old) + 64]))


def _cut(
    call_id: str, sampled: Sequence[int], language: PolicyLanguage, conversations: Conversations
) -> tuple[BreakClass, str] | None:
    """Why an answer has no end of turn; None if it has one."""
    if sampled and sampled[-1] in language.stop_token_ids:
        return None
    if conversations.ending(call_id) == "stop":
        return "stop_string", "the answer ended at a stop string, whose tokens the client was not shown"
    return "length_cut", "the answer was cut off before its end of turn"


def _divergence(path: Sequence[Segment], whole: Sequence[int]) -> tuple[int, Segment]:
    """The first token in which a path and a prompt differ, and the answer that it is in or, if it is just
    before one, that.
    """
    at = 0
    for number, segment in enumerate(path):
        ids = whole[at : at + len(segment.ids)]
        if list(ids) != list(segment.ids):
            equal = (one == other for one, other in zip(ids, segment.ids, strict=False))
            inside = next((index for index, same in enumerate(equal) if not same), len(ids))
            last = inside >= len(segment.ids) - 1 and segment.kind == "prompt" and number + 1 < len(path)
            return at + inside, path[number + 1] if last else segment
        at += len(segment.ids)
    return at, path[-1]


def _start(path: Sequence[Segment], segment: Segment) -> int:
    return sum(len(item.ids) for item in path[: path.index(segment)])


def _text(language: PolicyLanguage, ids: Sequence[int]) -> str:
    return language.renderer.written(ids).decode(errors="replace")


def _answer_index(messages: Sequence[Message], later: int) -> int:
    """The index of the assistant message that has `later` others behind it."""
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    return answers[max(0, len(answers) - 1 - later)] if answers else len(messages) - 1


def _asked(index: int, request: ModelRequest) -> str:
    return f"message {index} ({request.messages[index].role})"


def _told(cause: tuple[BreakClass, str], call_id: str, where: str, shown: str) -> Break:
    kind, why = cause
    return Break(kind, f"{where}, compared with call {call_id}: {why}" + (f"\n{shown}" if shown else ""))
