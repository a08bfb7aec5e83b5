"""Turns a request's messages into the exact prompt tokens, continuing the sampled tokens where possible.

Under `history="keep"` sampled tokens are never rendered again: the session's forest supplies them, and only
new messages are rendered behind them. Where that is impossible the request starts a branch, and the reason is
recorded as a `Break`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harnessgym.message import Message
from harnessgym.store.calls import Segment
from harnessgym.tokens import PieceTokens, TokenIds, as_array
from harnessgym.traces.diagnosis import Break, BreakClass, diagnose, diagnose_rendering
from harnessgym.traces.difference import difference
from harnessgym.traces.forest import Attachment, Forest
from proxies.conversations import Conversations, SeenPrefixes
from proxies.dialect import ModelRequest
from proxies.language import PolicyLanguage

__all__ = ["Break", "Prompt", "continue_from"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of one request."""

    ids: TokenIds
    parent: Attachment | None
    """The call whose prompt + completion is a token prefix of `ids`."""
    added: TokenIds
    """The tokens behind the parent's."""
    broken: Break | None


def continue_from(
    forest: Forest,
    seen_prefixes: SeenPrefixes,
    conversations: Conversations,
    chain: Sequence[str],
    request: ModelRequest,
    language: PolicyLanguage,
    history: str,
) -> Prompt:
    """The prompt of a request. `chain` has the digests of its prefixes."""
    # First by messages: the longest prefix that ends in a recorded answer supplies that answer's tokens.
    attachment = forest.attach(chain)
    if attachment is not None and history == "keep":
        ids = forest.ids(attachment.segment_id)
        added = language.renderer.extend(
            ids, _without_nonces(request.messages[attachment.matched :]), request.tools
        )
        if added is not None:
            ids.extend(added)
            return Prompt(
                ids,
                attachment,
                added,
                _left(forest, attachment, chain[-1] in seen_prefixes, request, conversations),
            )
    # Otherwise by tokens: render everything and find the longest recorded path that the result begins with.
    # This also joins a client's rewording that renders to the same tokens.
    request = replace(request, messages=_without_nonces(request.messages))
    rendered = language.renderer.render(request.messages, request.tools)
    whole = as_array(rendered)
    parent = forest.find_prefix(whole)
    broken = None
    if attachment is not None:
        # The messages promised a longer path than the tokens reach: the template, or the tokens of an answer,
        # differ from what was sampled.
        if parent is None or forest.length(parent.segment_id) < forest.length(attachment.segment_id):
            broken = _rendered(forest, attachment, whole, request, language, history, conversations)
        else:
            broken = _left(forest, attachment, chain[-1] in seen_prefixes, request, conversations)
    elif parent is None and seen_prefixes and chain[-1] not in seen_prefixes:
        broken = diagnose(request.messages, request.tools, conversations.newest_first()) or _unseen(
            chain, seen_prefixes
        )
    start = 0 if parent is None else forest.length(parent.segment_id)
    behind = rendered.part(start) if isinstance(rendered, PieceTokens) else whole[start:]
    return Prompt(whole, parent, behind, broken)


def _left(
    forest: Forest,
    attachment: Attachment,
    known: bool,
    request: ModelRequest,
    conversations: Conversations,
) -> Break | None:
    """The break of a request that continues an answer but then leaves the recorded conversation. None if the
    same request came before.
    """
    foreign = sum(message.role == "assistant" for message in request.messages[attachment.matched :])
    if known or not (foreign or forest.children.get(attachment.segment_id)):
        return None
    broken = diagnose(_without_nonces(request.messages), request.tools, conversations.newest_first())
    if foreign:
        detail = f"{foreign} assistant messages from message {attachment.matched} on are not what was sampled"
        return broken or Break("edited_history", detail)
    # A second child without foreign answers is an ordinary branch, such as a sibling or a retry with another
    # tool result. Only messages that are missing make it a break.
    return broken if broken is not None and broken.kind == "dropped_messages" else None


def _without_nonces(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(message.without_nonce() for message in messages)


def _unseen(chain: Sequence[str], seen_prefixes: SeenPrefixes) -> Break:
    """The break of a request whose earlier messages are not in memory: only the length of its known prefix
    can be given.
    """
    shared = next((index + 1 for index in reversed(range(len(chain))) if chain[index] in seen_prefixes), 0)
    detail = (
        f"the first {shared} of {len(chain)} messages are known; the earlier ones were not in memory to "
        "compare"
    )
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
    """The break of a request whose messages are known but whose rendering differs from the sampled tokens."""
    sampled = forest.segments[attachment.segment_id].ids
    cut = _cut(attachment.call_id, sampled, language, conversations)
    path = forest.path(attachment.segment_id)
    at, segment = _divergence(path, whole)
    # Under "keep" an answer without its end of turn cannot be continued at all, so the cut is the cause,
    # wherever the two renderings happen to differ first.
    if cut is not None and history == "keep":
        return _break(cut, attachment.call_id, _position(attachment.matched - 1, request), "")
    start = _start(path, segment)
    # A difference in the last token before an answer still belongs to that answer: a tokenizer may merge it
    # with the answer's first characters.
    if segment.kind == "prompt" or at < start - 1:
        old, new = (
            _text(language, ids[max(0, at - 16) : at + 32])
            for ids in (forest.ids(attachment.segment_id), whole)
        )
        why = f"the template renders the text before the answer differently, from token {at} on"
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
    return _break(cause, call_id, _position(index, request), difference(old, new[: len(old) + 64]))


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
    """The index of the first token in which a path and a prompt differ, and the segment it is in. If it is
    the last token before an answer, the segment is the answer's.
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
    """The index of the assistant message with `later` other assistant messages after it."""
    answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
    return answers[max(0, len(answers) - 1 - later)] if answers else len(messages) - 1


def _position(index: int, request: ModelRequest) -> str:
    return f"message {index} ({request.messages[index].role})"


def _break(cause: tuple[BreakClass, str], call_id: str, where: str, diff: str) -> Break:
    kind, why = cause
    return Break(kind, f"{where}, compared with call {call_id}: {why}" + (f"\n{diff}" if diff else ""))
