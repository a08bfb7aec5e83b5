"""How a chat template takes messages, where templates differ.

Most take the arguments of a call as an object, any id, and reasoning as `reasoning_content`. Others add up
arguments as text (DeepSeek), refuse ids that are not nine letters and digits (Mistral), write ids that must
have the function's name (Kimi), read `thinking` (gpt-oss), or take system messages at the beginning only
(Qwen 3.5). What a template takes is found by trying.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import product
from typing import Any

from jinja2 import TemplateError

from harnessgym.message import Message

_THINKING = re.compile(r"""\.thinking\b|\[['"]thinking['"]\]|get\(['"]thinking['"]""")
_NAMED_ID = re.compile(r"functions\..+:\d+")
_SAMPLED_ID = re.compile(r"(functions\.[^<>\s]+:\d+)\s*<\|tool_call_argument_begin\|>")
_PLACE = re.compile(r"_(\d+)\Z")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_ARGUMENTS = {"key": "text", "other": [1, True]}
_ID, _NAME = "call_0123456789abcdef_0", "hgfunction7c1e"
_TRIED = (
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": _ID,
                "type": "function",
                "function": {"name": _NAME, "arguments": _ARGUMENTS},
            }
        ],
    },
    {"role": "tool", "content": "b", "tool_call_id": _ID},
)
_LATER_SYSTEM = (
    {"role": "system", "content": "a"},
    {"role": "user", "content": "b"},
    {"role": "assistant", "content": "c"},
    {"role": "system", "content": _NAME},
)

Messages = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form of messages that a template takes."""

    text_arguments: bool = False
    """Arguments of calls are JSON text."""
    short_ids: bool = False
    """Ids of calls are nine letters and digits, made from the real ones."""
    named_ids: bool = False
    """Ids of calls are `functions.NAME:INDEX`, counted through the conversation."""
    thinking: bool = False
    """Reasoning is in `thinking`."""
    either: bool = False
    """A message with calls has content or reasoning. Of both, the reasoning is left out."""
    one_system: bool = False
    """There is one system message at most, at the beginning. Others there are joined to it, and what the
    system says later, as some harnesses have it do, is said by the user."""

    @classmethod
    def of(cls, source: str, render: Callable[[Messages], str]) -> "MessageForm":
        """The form that a template takes. `render` fills it."""
        thinking = "reasoning_content" not in source and _THINKING.search(source) is not None
        for count, text_arguments, short_ids in product((3, 2), (False, True), (False, True)):
            form = cls(text_arguments, short_ids, thinking=thinking)
            try:
                text = render(form.apply(_TRIED[:count]))
            except (TemplateError, TypeError, ValueError):
                continue
            # A template may also write an object as Python does, which no policy was trained to.
            if str(_ARGUMENTS) not in text:
                either = thinking and not _takes_both(form, render)
                form = replace(form, named_ids=_ID in text and _NAME not in text, either=either)
                return replace(form, one_system=_wants_one_system(form, render))
        form = cls(thinking=thinking)
        return replace(form, one_system=_wants_one_system(form, render))

    def apply(self, messages: Messages) -> list[dict[str, Any]]:
        """The messages in this form."""
        if self == _USUAL:
            return list(messages)
        messages = _one_system(messages) if self.one_system else messages
        calls = [call for message in messages for call in message.get("tool_calls") or ()]
        ids = {call["id"]: self._id(call, index) for index, call in enumerate(calls)}
        return [self._applied(message, ids) for message in messages]

    def of_ids(self) -> "MessageForm":
        """The same ids, in messages of the usual form."""
        return MessageForm(short_ids=self.short_ids, named_ids=self.named_ids)

    def answering(self, results: Sequence[Message], turn: str) -> list[Message]:
        """Results that answer the calls of a sampled turn, with the ids that the policy gave its calls, if it
        names them. `turn` is the turn's text. Other messages are left as they are.
        """
        if not self.named_ids:
            return list(results)
        sampled = _SAMPLED_ID.findall(turn)
        out = []
        for place, result in enumerate(results):
            # The parser's ids end in the call's place in its turn.
            counted = _PLACE.search(result.tool_call_id or "")
            index = place if counted is None else int(counted[1])
            named = result.role == "tool" and index < len(sampled)
            out.append(replace(result, tool_call_id=sampled[index]) if named else result)
        return out

    def _id(self, call: dict[str, Any], index: int) -> str:
        call_id = str(call["id"])
        if self.short_ids:
            return _short(call_id)
        if not self.named_ids or _NAMED_ID.fullmatch(call_id):
            return call_id
        return f"functions.{call['function']['name']}:{index}"

    def _applied(self, message: dict[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
        out = dict(message)
        calls = message.get("tool_calls")
        if self.thinking and "reasoning_content" in out:
            reasoning = out.pop("reasoning_content")
            if not (self.either and calls and message.get("content")):
                out["thinking"] = reasoning
        if calls:
            out["tool_calls"] = [self._call(call, ids) for call in calls]
        if "tool_call_id" in out:
            result_id = out["tool_call_id"]
            out["tool_call_id"] = ids.get(result_id, _short(result_id) if self.short_ids else result_id)
        return out

    def _call(self, call: dict[str, Any], ids: Mapping[str, str]) -> dict[str, Any]:
        out = {**call, "id": ids.get(call["id"], call["id"])}
        arguments = call["function"]["arguments"]
        if self.text_arguments and not isinstance(arguments, str):
            text = json.dumps(arguments, ensure_ascii=False)
            out["function"] = {**call["function"], "arguments": text}
        return out


_USUAL = MessageForm()


def _takes_both(form: MessageForm, render: Callable[[Messages], str]) -> bool:
    asked, called = _TRIED[:2]
    try:
        render(form.apply([asked, {**called, "content": "b", "reasoning_content": "c"}]))
    except (TemplateError, TypeError, ValueError):
        return False
    return True


def _wants_one_system(form: MessageForm, render: Callable[[Messages], str]) -> bool:
    """Whether a template refuses or leaves out a later system message, and takes it as the user's."""

    def shown(form: MessageForm) -> bool:
        try:
            return _NAME in render(form.apply(_LATER_SYSTEM))
        except (TemplateError, TypeError, ValueError):
            return False

    return not shown(form) and shown(replace(form, one_system=True))


def _one_system(messages: Messages) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] != "system" or not out:
            out.append(message)
            continue
        before, content = out[-1], message["content"]
        if len(out) == 1 and before["role"] == "system" and isinstance(content, str):
            out[0] = {**before, "content": f"{before['content']}\n\n{content}"}
        else:
            out.append({**message, "role": "user"})
    return out


def _short(call_id: str) -> str:
    """An id of nine letters and digits, the same for equal ids."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()[:9]
