"""Input of the Responses protocol: a flat list of items, put back together into messages.

An answer comes back as several items: reasoning, a message, a call each. They become one assistant message again, the very one
that was sampled, also where a client puts results between the calls or leaves out ids.
"""

import json
from dataclasses import dataclass, field

from harnessgym.message import Message, ToolCall
from proxies.dialects.body import Fields, malformed, unsupported
from proxies.dialects.responses_ids import answer_of, is_raw, unseal
from proxies.dialects.responses_tools import flat_name

_ROLES = ("user", "system", "developer", "assistant")


def read_input(fields: Fields) -> list[Message]:
    """The messages of `input`; none if it is absent. Raises `RequestProblem`."""
    value = fields.raw.get("input")
    if isinstance(value, str):
        return [Message("user", value)]
    conversation = _Conversation()
    for item in fields.children("input"):
        conversation.add(item)
    return conversation.messages()


@dataclass
class _Draft:
    """An assistant message whose items are still being collected."""

    answer: str | None = None
    """The answer its items belong to, once one of them tells."""
    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    last: str = ""
    """Type of the item that came last."""

    def message(self) -> Message:
        return Message("assistant", self.content, reasoning=self.reasoning, tool_calls=tuple(self.calls))


class _Conversation:
    """Messages so far, the last assistant message open."""

    def __init__(self) -> None:
        self._entries: list[Message | _Draft] = []
        self._draft: _Draft | None = None
        self._answered = False
        """Whether a tool result came after the draft."""

    def messages(self) -> list[Message]:
        """All messages, in order."""
        return [entry.message() if isinstance(entry, _Draft) else entry for entry in self._entries]

    def add(self, item: Fields) -> None:
        """Take the next item."""
        kind = item.text("type", "message")
        match kind:
            case "message":
                self._message(item)
            case "reasoning":
                self._open(item, kind).reasoning += _reasoning(item)
            case "function_call":
                arguments = item.raw.get("arguments")
                if not isinstance(arguments, str):  # some clients send the object itself
                    arguments = json.dumps(arguments or {}, ensure_ascii=False)
                self._call(item, kind, arguments or "{}")
            case "custom_tool_call":
                given = item.text("input")
                raw = is_raw(item.text("id", ""))
                self._call(item, kind, given if raw else json.dumps({"input": given}, ensure_ascii=False))
            case "function_call_output" | "custom_tool_call_output":
                self._result(item)
            case "item_reference":
                unsupported(
                    f"{item.at('type')}: item references are not supported by this endpoint; send the items themselves."
                )
            case _:
                unsupported(
                    f"{item.at('type')}: {kind!r} items are not supported by this endpoint; messages, reasoning, and calls and "
                    "outputs of function and custom tools are."
                )

    def _message(self, item: Fields) -> None:
        role = item.text("role")
        if role not in _ROLES:
            malformed(f"{item.at('role')}: {role!r} is not one of {', '.join(map(repr, _ROLES))}.")
        if role == "assistant":
            text, images = _content(item, "content", "", required=False)
            if images:
                unsupported(f"{item.at('content')}: images of the assistant are not supported by this endpoint.")
            self._open(item, "message").content += text
            return
        self._draft = None
        text, images = _content(item, "content", "\n")
        self._entries.append(Message("user" if role == "user" else "system", text, images=images))

    def _call(self, item: Fields, kind: str, arguments: str) -> None:
        name = flat_name(item.text("namespace", ""), item.text("name"))
        self._open(item, kind).calls.append(ToolCall(item.text("call_id"), name, arguments))

    def _result(self, item: Fields) -> None:
        text, images = _content(item, "output", "\n")
        self._entries.append(Message("tool", text, tool_call_id=item.text("call_id"), images=images))
        self._answered = True

    def _open(self, item: Fields, kind: str) -> _Draft:
        """The draft that an assistant item belongs to."""
        answer = answer_of(item.text("id", ""), item.text("call_id", ""))
        if self._draft is None or not self._continues(self._draft, answer, kind):
            self._draft, self._answered = _Draft(), False
            self._entries.append(self._draft)
        self._draft.answer, self._draft.last = answer or self._draft.answer, kind
        return self._draft

    def _continues(self, draft: _Draft, answer: str | None, kind: str) -> bool:
        """Whether an item is of the draft's answer. No answer has two messages in a row, so those tell two answers apart."""
        if answer is not None and draft.answer is not None:
            return answer == draft.answer
        return not self._answered and not kind == draft.last == "message"


def _content(item: Fields, name: str, joint: str, *, required: bool = True) -> tuple[str, tuple[str, ...]]:
    """Texts, joined, and images of an item."""
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
        unsupported(f"{part.at('type')}: {kind!r} content is not supported by this endpoint; text and images are.")
    return part.text("text")


def _image(part: Fields) -> str:
    if part.given("file_id"):
        unsupported(f"{part.at('file_id')}: uploaded files are not supported by this endpoint; send the image as a URL.")
    return part.text("image_url")


def _reasoning(item: Fields) -> str:
    """The exact text if the client kept it, else what it shows of it. Raises `RequestProblem` if there is nothing to read."""
    sealed = item.text("encrypted_content", "")
    if sealed and (text := unseal(sealed)) is not None:
        return text
    shown = [part.text("text") for part in item.children("content")]
    text = "".join(shown) or "\n\n".join(part.text("text") for part in item.children("summary"))
    if sealed and not text:
        malformed(f"{item.at('encrypted_content')}: The encrypted content could not be verified: it is not from this endpoint.")
    return text
