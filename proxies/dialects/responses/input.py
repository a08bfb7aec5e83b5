"""Input of the Responses protocol: joins a flat list of items into messages.

An answer comes back as several items: reasoning, a message, and one item per call. They become one assistant
message again, equal to the one that was sampled, even if the client puts results between the calls or omits
ids.

Items that an earlier request of the session had too are neither read nor joined again: their messages are the
same objects.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harnessgym.message import Message, ToolCall, canonical_json
from proxies.dialect import Problem, RequestProblem
from proxies.dialects.body import Fields, malformed, unsupported
from proxies.dialects.responses.answer import (
    answer_of,
    call_of_item,
    ending_of,
    is_raw,
    part_of,
    unseal,
)
from proxies.dialects.responses.client_tools import CALLS, RESULTS, read_call, read_result
from proxies.dialects.responses.tools import flat_name

_THOUGHT = re.compile(r"<think>\n?(.*?)\n?</think>\s*", re.DOTALL)
"""An assistant's message that holds nothing but its reasoning, as pydantic-ai sends it."""
_ROLES = ("user", "system", "developer", "assistant")
_CALLS = CALLS | {"function_call", "custom_tool_call"}
_RESULTS = RESULTS | {"function_call_output", "custom_tool_call_output"}


@dataclass(frozen=True, slots=True)
class InputConversation:
    """The conversation in `input`."""

    messages: Sequence[Message] = ()
    identity: str = ""
    """A text that equal inputs share, however their JSON is formatted."""
    items: "Sequence[_Item]" = ()

    @property
    def refers_to(self) -> tuple[str, ...]:
        """The earlier calls whose answers are needed for `filled`, in order."""
        return tuple(dict.fromkeys(item.answer for item in self.items if item.reference and item.answer))

    def filled(self, answers: Mapping[str, Message]) -> Sequence[Message]:
        """The messages, with parts of earlier answers in place of the references to them.

        Raises `RequestProblem` for a part that an answer does not have.
        """
        return _messages([item.filled(answers) for item in self.items])


def read_input(fields: Fields) -> InputConversation:
    """The conversation in `input`; an empty one if it is absent. Raises `RequestProblem`."""
    value = fields.raw.get("input")
    if isinstance(value, str):
        return InputConversation([Message("user", value)], canonical_json(value))
    items = fields.each("input", _item)
    return InputConversation(_messages(items), "\n".join(item.identity for item in items), items)


@dataclass(slots=True, eq=False)
class _Item:
    """One parsed item. A later request that has the same item gets the same object."""

    kind: str
    identity: str
    message: Message
    """The item as a message; an assistant's item may be only a part of one."""
    answer: str | None = None
    """The id of the answer it belongs to; None if its ids were not minted here."""
    reference: str = ""
    """The id of the item for which it stands; its message is then empty."""
    _joined: "tuple[list[_Item], Message] | None" = None

    def filled(self, answers: Mapping[str, Message]) -> "_Item":
        """The item for which it stands, or itself."""
        if not self.reference or self.answer is None:
            return self
        part = part_of(answers[self.answer], self.reference)
        if part is None:
            raise _not_found(self.reference)
        return replace(self, message=part, kind="message" if part.content else "part", reference="")

    def join(self, others: "list[_Item]") -> Message:
        """The message that this item and `others` make up."""
        if not others:
            return self.message
        # Kept for the next request: equal parts must give the same object, and joining is not free.
        if self._joined is None or self._joined[0] != others:
            self._joined = (others, _join([self, *others]))
        return self._joined[1]


@dataclass(slots=True)
class _Group:
    """The items of one message. An assistant message may still get more."""

    items: list[_Item]
    answer: str | None = None
    """The id of the answer they belong to; None until an item names it."""
    answered: bool = False
    """Whether a tool result has followed them."""

    def takes(self, item: _Item) -> bool:
        """Whether an item belongs to the same answer."""
        # Without ids we have to guess. An answer never has two messages in a row, and a result ends it.
        if item.answer is not None and self.answer is not None:
            return item.answer == self.answer
        return not self.answered and not item.kind == self.items[-1].kind == "message"


def _messages(items: Sequence[_Item]) -> list[Message]:
    groups: list[_Group] = []
    draft: _Group | None = None
    for item in items:
        # A tool result does not close the draft: some clients put results between the calls of one answer.
        if item.message.role != "assistant":
            groups.append(_Group([item]))
            if item.message.role != "tool":
                draft = None
            elif draft is not None:
                draft.answered = True
            continue
        if draft is None or not draft.takes(item):
            draft = _Group([])
            groups.append(draft)
        draft.items.append(item)
        draft.answer = item.answer or draft.answer
    return [group.items[0].join(group.items[1:]) for group in groups]


def _join(items: Sequence[_Item]) -> Message:
    parts = [_reasoned(item.message) if item.kind == "thought" else item.message for item in items]
    return Message(
        "assistant",
        "".join(part.content for part in parts),
        reasoning="".join(part.reasoning for part in parts),
        tool_calls=tuple(call for part in parts for call in part.tool_calls),
    )


def _reasoned(message: Message) -> Message:
    """A message that holds its reasoning as text, with the reasoning in its place."""
    thought = _THOUGHT.fullmatch(message.content)
    return message if thought is None else Message("assistant", reasoning=thought[1])


def _item(item: Fields) -> _Item:
    kind = item.text("type", "message")
    message = _message(item, kind)
    # Alone, such a text is what was said: only what follows it in the same answer shows that it is reasoning.
    if kind == "message" and message.role == "assistant" and _THOUGHT.fullmatch(message.content):
        kind = "thought"
    identity = hashlib.blake2b(canonical_json(item.raw).encode(), digest_size=16).hexdigest()
    answer = answer_of(item.text("id", ""), item.text("call_id", "")) if message.role == "assistant" else None
    reference = item.text("id") if kind == "item_reference" else ""
    if reference and answer is None:
        raise _not_found(reference)
    return _Item(kind, identity, message, answer, reference)


def _not_found(reference: str) -> RequestProblem:
    """The problem of a reference to nothing, in OpenAI's words."""
    return RequestProblem(Problem("malformed", f"Item with id '{reference}' not found."))


def _message(item: Fields, kind: str) -> Message:
    """One item as a message. Raises `RequestProblem` for an unsupported item."""
    match kind:
        case "message":
            return _parse_message(item)
        case "reasoning":
            return Message("assistant", reasoning=_reasoning(item))
        case "item_reference":
            return Message("assistant")
        case _ if kind in _CALLS:
            return Message("assistant", tool_calls=(_call(item, kind),))
        case _ if kind in _RESULTS:
            return _result(item, kind)
    return unsupported(
        f"{item.at('type')}: {kind!r} items are not supported by this endpoint; messages, reasoning, and "
        "calls and outputs of function and custom tools and of those that the client runs are."
    )


def _parse_message(item: Fields) -> Message:
    role = item.text("role")
    if role not in _ROLES:
        malformed(f"{item.at('role')}: {role!r} is not one of {', '.join(map(repr, _ROLES))}.")
    if role == "assistant":
        text, images = _content(item, "content", "", required=False)
        if images:
            unsupported(f"{item.at('content')}: images of the assistant are not supported by this endpoint.")
        return Message("assistant", text)
    text, images = _content(item, "content", "\n")
    return Message("user" if role == "user" else "system", text, images=images)


def _result(item: Fields, kind: str) -> Message:
    if kind not in RESULTS:
        text, images = _content(item, "output", "\n")
        return Message("tool", text, tool_call_id=item.text("call_id"), images=images)
    # By the SDK's types the result of a local shell names its call in `id`; its users write `call_id`.
    local = kind == "local_shell_call_output" and not item.given("call_id")
    call_id = call_of_item(item.text("id")) if local else item.text("call_id")
    return replace(read_result(item, kind), tool_call_id=call_id)


def _call(item: Fields, kind: str) -> ToolCall:
    if kind in CALLS:
        return read_call(item, kind, ending_of(item.text("id", "")))
    if kind == "function_call":
        arguments = item.raw.get("arguments")
        if not isinstance(arguments, str):  # some clients send the object itself
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        arguments = arguments or "{}"
    else:
        arguments = item.text("input")
        if not is_raw(item.text("id", "")):
            arguments = json.dumps({"input": arguments}, ensure_ascii=False)
    name = flat_name(item.text("namespace", ""), item.text("name"))
    return ToolCall(item.text("call_id"), name, arguments)


def _content(item: Fields, name: str, joint: str, *, required: bool = True) -> tuple[str, tuple[str, ...]]:
    """The joined texts and the images of an item."""
    value = item.need(name) if required else item.raw.get(name)
    if value is None or isinstance(value, str):
        return value or "", ()
    texts: list[str] = []
    images: list[str] = []
    for part in item.children(name):
        if part.text("type") == "input_image":
            images.append(_image(part))
        else:
            texts.append(_text(part))
    return joint.join(texts), tuple(images)


def _text(part: Fields) -> str:
    kind = part.text("type")
    if kind == "refusal":
        return part.text("refusal")
    if kind not in ("input_text", "output_text", "text"):
        unsupported(
            f"{part.at('type')}: {kind!r} content is not supported by this endpoint; text and images are."
        )
    return part.text("text")


def _image(part: Fields) -> str:
    if part.given("file_id"):
        unsupported(
            f"{part.at('file_id')}: uploaded files are not supported by this endpoint; send the image as a "
            "URL."
        )
    return part.text("image_url")


def _reasoning(item: Fields) -> str:
    """The exact reasoning if the client kept its `encrypted_content`, else its visible text.

    Raises `RequestProblem` if there is only content that another endpoint encrypted.
    """
    sealed = item.text("encrypted_content", "")
    if sealed and (text := unseal(sealed)) is not None:
        return text
    shown = [part.text("text") for part in item.children("content")]
    text = "".join(shown) or "\n\n".join(part.text("text") for part in item.children("summary"))
    if sealed and not text:
        malformed(
            f"{item.at('encrypted_content')}: The encrypted content could not be verified: it is not from "
            "this endpoint."
        )
    return text
