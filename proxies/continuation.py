"""From a request's messages to the exact tokens the engine is given: continue what was sampled wherever that is possible.

What was sampled is never rendered again under `history="keep"`: the session's forest supplies those tokens, and only new
messages are rendered behind them. Where that is impossible the request starts a branch, and the reason is kept.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from harnessgym.message import Message
from harnessgym.traces.forest import Attachment, Forest
from proxies.dialect import ModelRequest
from proxies.language import Language

BreakClass = Literal["length_cut", "template", "edited_history", "new_root"]


@dataclass(frozen=True, slots=True)
class Break:
    """Why a request could not continue what came before it."""

    kind: BreakClass
    detail: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of one request."""

    ids: list[int]
    parent: Attachment | None
    """The call whose prompt + completion is a token prefix of `ids`."""
    added: list[int]
    """What follows the parent."""
    broken: Break | None


def continue_from(
    forest: Forest, heads: Collection[str], chain: Sequence[str], request: ModelRequest, language: Language, history: str
) -> Prompt:
    """The prompt of a request whose digests are `chain`. `heads` are the digests of all leading parts of earlier requests."""
    attachment = forest.attach(chain)
    if attachment is not None and history == "keep":
        ids = forest.ids(attachment.segment_id)
        added = language.renderer.extend(ids, request.messages[attachment.matched :], request.tools)
        if added is not None:
            broken = _edited(request.messages, attachment.matched)
            return Prompt([*ids, *added], attachment, added, broken)
    whole = language.renderer.render(request.messages, request.tools)
    parent = forest.find_prefix(whole)
    if parent is not None:
        return Prompt(whole, parent, whole[forest.length(parent.segment_id) :], None)
    return Prompt(whole, None, whole, _diagnose(language, forest, heads, chain, request, attachment))


def _diagnose(
    language: Language,
    forest: Forest,
    heads: Collection[str],
    chain: Sequence[str],
    request: ModelRequest,
    attachment: Attachment | None,
) -> Break | None:
    if attachment is not None:
        sampled = forest.segments[attachment.segment_id].ids
        if not sampled or sampled[-1] not in language.stop_token_ids:
            return Break("length_cut", f"the answer of call {attachment.call_id} was cut off before its end of turn")
        return Break("template", f"call {attachment.call_id} has the messages but the template renders other tokens")
    if not heads:
        return None
    shared = next((index for index, digest in enumerate(chain) if digest not in heads), len(chain))
    if shared == len(chain):
        return None
    if shared and any(message.role == "assistant" for message in request.messages[:-1]):
        return Break("edited_history", f"the first {shared} of {len(chain)} messages are known")
    return Break("new_root", f"the first {shared} of {len(chain)} messages are known")


def _edited(messages: Sequence[Message], matched: int) -> Break | None:
    foreign = sum(message.role == "assistant" for message in messages[matched:])
    if not foreign:
        return None
    return Break("edited_history", f"{foreign} assistant messages after message {matched} are not what was sampled")
