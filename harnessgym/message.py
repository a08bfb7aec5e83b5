"""Messages, tools and sampling parameters in one form for all protocols.

A message's `digest` is its identity for continuation. Messages with equal digests mean the same to the
policy, however a client re-serialised them (argument whitespace, 1.0 as 1, `content` null or missing,
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
"""Integers up to this are exact in every client; JavaScript rounds larger ones."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call by the policy."""

    id: str
    name: str
    arguments: str
    """JSON text of an object, as the policy wrote it."""

    @property
    def parsed(self) -> Any:
        """The arguments as a value, or the raw text if it is not JSON."""
        try:
            return json.loads(self.arguments)
        except (ValueError, RecursionError):
            return self.arguments

    @property
    def canonical(self) -> str:
        """Canonical JSON of the arguments, the same for equal values. No arguments are an empty object."""
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
    """For role `tool`: id of the call that it answers."""
    name: str | None = None
    images: tuple[str, ...] = ()
    """`data:` or `https:` URLs of images. They come after the text."""
    is_error: bool = False
    """For role `tool`: whether the harness reports that the tool failed."""

    @cached_property
    def digest(self) -> str:
        """Hash in hex of what the message says, without the proxy's ids, argument formatting and nonces."""
        calls = [[call.name, call.canonical] for call in self.tool_calls]
        role = "tool/error" if self.is_error else self.role
        fields = [role, self.without_nonce().content, self.reasoning, calls, *self.images]
        return hashlib.blake2b(canonical_json(fields).encode(), digest_size=16).hexdigest()

    def without_nonce(self) -> "Message":
        """The message without the billing lines that a harness adds and changes in each call."""
        if self.role != "system" or _NONCE not in self.content:
            return self
        return replace(self, content=_NONCE_LINE.sub("", self.content))

    @property
    def shown_text(self) -> str:
        """The content as the policy reads it.

        Chat templates cannot express `is_error`, so an error begins with "Error: ", unless the text already
        begins with the word error.
        """
        if not self.is_error or _SAYS_ERROR.match(self.content):
            return self.content
        return f"Error: {self.content}" if self.content else "Error"

    def in_words(self) -> "Message":
        """The message as the policy reads it, with `is_error` moved into the text."""
        return replace(self, content=self.shown_text, is_error=False) if self.is_error else self

    def to_template(self) -> dict[str, Any]:
        """The form that chat templates take (Hugging Face / OpenAI), with parsed arguments if they parse."""
        return self.in_words().to_chat()

    def to_chat(self) -> dict[str, Any]:
        """As `to_template`, but with unchanged content and `is_error` as a field, which OpenAI's lacks."""
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
    """Its group in the protocol. `name` is unique without it."""
    freeform: bool = False
    """Whether it is called with plain text. Its arguments are then an object with that text as `input`."""
    native: dict[str, Any] = field(default_factory=dict)
    """The tool as the client declares it, if its protocol has a type for it, with items of its own for calls
    and results. Empty for functions."""

    def to_template(self) -> dict[str, Any]:
        """OpenAI function-tool form."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. The session fixes them; the store has the requested and the applied ones."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    max_tokens: int = 512
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None

    def limited(self, max_tokens: int | None) -> "Sampling":
        """The same parameters with at most `max_tokens` new tokens."""
        if max_tokens is None or max_tokens >= self.max_tokens:
            return self
        return replace(self, max_tokens=max_tokens)


_REMEMBERED = 32
_CONTEXTS: dict[tuple[int, ...], tuple[tuple[ToolSpec, ...], str]] = {}
"""Digests by the ids of the tool objects. The tools are kept in the value, so that their ids are not reused.
A harness offers the same tools for hours, so they are hashed once."""


def context_digest(tools: tuple[ToolSpec, ...]) -> str:
    """Hash of what belongs to a conversation besides its messages: the offered tools."""
    key = tuple(map(id, tools))
    known = _CONTEXTS.get(key)
    if known is None:
        if len(_CONTEXTS) >= _REMEMBERED:
            _CONTEXTS.clear()
        text = canonical_json([tool.to_template() for tool in tools])
        known = _CONTEXTS[key] = (tools, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())
    return known[1]


def chain_digests(context: str, messages: tuple[Message, ...]) -> list[str]:
    """Hash of every prefix of a conversation. Entry i covers the context and messages[: i + 1]."""
    chain = context
    out = []
    for message in messages:
        chain = hashlib.blake2b((chain + message.digest).encode(), digest_size=16).hexdigest()
        out.append(chain)
    return out


def canonical_json(value: Any) -> str:
    """JSON text with sorted keys and no whitespace."""
    return _CANONICAL.encode(value)


_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _number(digits: str) -> int | float | str:
    """A JSON number in canonical form. JavaScript clients send 1.0 back as 1 and round large integers."""
    # Integers go through float too: two that JavaScript rounds to the same number must be equal here.
    value = float(digits)
    if not math.isfinite(value):
        return digits
    return int(value) if value.is_integer() and abs(value) <= _EXACT else value
