"""Messages, tools and sampling parameters in one form, whichever protocol they came in.

A message's `digest` is its identity for continuation: two messages with equal digests say the same thing to
the policy, however a client re-serialised them (argument whitespace, 1.0 as 1, `content` null or missing,
tool-call ids, cache markers).
"""

import hashlib
import json
import math
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
_NONCE = "x-anthropic-billing-header:"
_NONCE_LINE = re.compile(rf"^{_NONCE}[^\n]*\n*", re.MULTILINE)
_SAYS_ERROR = re.compile(r"\W*(tool_use_)?error\b", re.IGNORECASE)
_EXACT = 2**53
"""Integers up to here are the same number in every client; JavaScript rounds larger ones."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool by the policy."""

    id: str
    name: str
    arguments: str
    """JSON text of an object, as the policy wrote it."""

    @property
    def parsed(self) -> Any:
        """The arguments as a value; the raw text when it is not JSON."""
        try:
            return json.loads(self.arguments)
        except (ValueError, RecursionError):
            return self.arguments

    @property
    def canonical(self) -> str:
        """The arguments in a form that equal ones share, however they are written. Nothing is an empty
        object.
        """
        try:
            value = json.loads(self.arguments or "{}", parse_float=_number, parse_int=_number)
            return canonical_json({} if value is None else value)
        except (ValueError, RecursionError):
            return canonical_json(self.arguments)


@dataclass(frozen=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """For role `tool`: the call it answers."""
    name: str | None = None
    images: tuple[str, ...] = ()
    """`data:` or `https:` URLs of images, shown after the text."""
    is_error: bool = False
    """For role `tool`: the harness says that the tool failed."""

    @cached_property
    def digest(self) -> str:
        """Identity of what the message says, hex. Ids that the proxy mints, argument formatting and nonces
        do not enter.
        """
        calls = [[call.name, call.canonical] for call in self.tool_calls]
        role = "tool/error" if self.is_error else self.role
        said = [role, self.without_nonce().content, self.reasoning, calls, *self.images]
        return hashlib.blake2b(canonical_json(said).encode(), digest_size=16).hexdigest()

    def without_nonce(self) -> "Message":
        """The message without lines that a harness adds for its provider's accounts and changes from call
        to call.
        """
        if self.role != "system" or _NONCE not in self.content:
            return self
        return replace(self, content=_NONCE_LINE.sub("", self.content))

    @property
    def shown_text(self) -> str:
        """The content as the policy reads it. Chat templates have no place for `is_error`, so it stands in front as "Error: ",
        unless the text begins with the word error anyway.
        """
        if not self.is_error or _SAYS_ERROR.match(self.content):
            return self.content
        return f"Error: {self.content}" if self.content else "Error"

    def in_words(self) -> "Message":
        """The message as the policy reads it: `is_error` is a part of the text."""
        return replace(self, content=self.shown_text, is_error=False) if self.is_error else self

    def to_template(self) -> dict[str, Any]:
        """The form chat templates take (Hugging Face / OpenAI), arguments as an object where they parse."""
        return self.in_words().to_chat()

    def to_chat(self) -> dict[str, Any]:
        """The same with `is_error` as a field of its own, which OpenAI's protocol lacks, and the content as it is."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.images:
            parts = [{"type": "image_url", "image_url": {"url": url}} for url in self.images]
            out["content"] = [{"type": "text", "text": self.content}, *parts] if self.content else parts
        if self.reasoning:
            out["reasoning_content"] = self.reasoning
        if self.tool_calls:
            out["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.parsed}}
                for call in self.tool_calls
            ]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            out["name"] = self.name
        if self.is_error:
            out["is_error"] = True
        return out


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool offered to the policy."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """JSON schema of the arguments."""
    namespace: str = ""
    """The group it belongs to in the protocol; `name` is unique without it."""
    freeform: bool = False
    """Whether it is called with plain text: its arguments are then an object whose only member, `input`,
    is that text."""

    def to_template(self) -> dict[str, Any]:
        """OpenAI function-tool form."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled. The session fixes it; what a harness asked for is stored beside what was
    applied.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def limited(self, max_tokens: int | None) -> "Sampling":
        """The same with at most `max_tokens` new tokens."""
        return self if max_tokens is None else replace(self, max_tokens=min(self.max_tokens, max_tokens))


_REMEMBERED = 32
_CONTEXTS: dict[tuple[int, ...], tuple[tuple[ToolSpec, ...], str]] = {}
"""Digests by the identity of the tools, which are held so that nothing else gets it: a harness offers the
same for hours."""


def context_digest(tools: tuple[ToolSpec, ...]) -> str:
    """Identity of what frames a conversation besides its messages: the tools offered."""
    key = tuple(map(id, tools))
    known = _CONTEXTS.get(key)
    if known is None:
        if len(_CONTEXTS) >= _REMEMBERED:
            _CONTEXTS.clear()
        text = canonical_json([tool.to_template() for tool in tools])
        known = _CONTEXTS[key] = (tools, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())
    return known[1]


def chain_digests(context: str, messages: tuple[Message, ...]) -> list[str]:
    """Identity of every leading part of a conversation: entry i covers the context and messages[: i + 1]."""
    chain = context
    out = []
    for message in messages:
        chain = hashlib.blake2b((chain + message.digest).encode(), digest_size=16).hexdigest()
        out.append(chain)
    return out


def canonical_json(value: Any) -> str:
    """JSON text with sorted keys and no spare whitespace."""
    return _CANONICAL.encode(value)


_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _number(digits: str) -> int | float | str:
    """A JSON number such that equal ones are equal: JavaScript sends 1.0 back as 1, and rounds large
    integers.
    """
    value = float(digits)
    if not math.isfinite(value):
        return digits
    return int(value) if value.is_integer() and abs(value) <= _EXACT else value
