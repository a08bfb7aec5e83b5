"""Anthropic's Messages API."""

import base64
import hashlib
import json
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harnessgym.message import Message, ToolCall, ToolSpec
from proxies import sse
from proxies.dialect import (
    Answer,
    Delta,
    Event,
    Finished,
    ModelRequest,
    OutputFormat,
    Problem,
    Purpose,
    ReasoningDelta,
    Route,
    Stamp,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from proxies.dialects.body import Fields, bearer, malformed, merge_systems, public_headers, unsupported
from proxies.dialects.client_tools import client_tool

_ASKED = ("temperature", "top_p", "top_k", "max_tokens", "stop_sequences", "thinking", "output_config")
_REFUSED = ("mcp_servers", "container")
_RAW_ARGUMENTS = "_raw_arguments"
"""Key that carries arguments that are not a JSON object, which the protocol has no other place for."""
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_STATUS: dict[str, tuple[int, str]] = {
    "malformed": (400, "invalid_request_error"),
    "unsupported": (400, "invalid_request_error"),
    "unknown_key": (401, "authentication_error"),
    "sealed": (403, "permission_error"),
    "limit": (403, "permission_error"),
    "not_found": (404, "not_found_error"),
    "too_large": (413, "request_too_large"),
    "too_slow": (408, "invalid_request_error"),
    "overflow": (400, "invalid_request_error"),
    "overloaded": (529, "overloaded_error"),
    "unavailable": (529, "overloaded_error"),
    "upstream": (500, "api_error"),
}
"""Maps a problem kind to HTTP status and error type."""


_PATHS: dict[str, Purpose] = {"/messages": "generate", "/messages/count_tokens": "count"}


class Messages:
    """POST /v1/messages."""

    name = "messages"
    # Some SDKs, such as Vercel's, expect `/v1` in their base URL and get one without.
    routes = tuple(
        Route("POST", f"{version}{path}", purpose)
        for version in ("/v1", "")
        for path, purpose in _PATHS.items()
    )
    marks: Sequence[str] = ("anthropic-version",)
    tool_call_prefix = "toolu_"

    def secret(self, headers: Mapping[str, str]) -> str | None:
        """The `x-api-key`, else the bearer token."""
        return headers.get("x-api-key") or bearer(headers)

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """Read a request. Raises `RequestProblem`."""
        fields = Fields.parse(body)
        fields.refuse(_REFUSED)
        _check_edits(fields)
        if fields.count("max_tokens") is None and not headers.get(":path", "").endswith("/count_tokens"):
            malformed("max_tokens: Field required")
        turns = fields.each("messages", _messages)
        if not turns:
            malformed("messages: at least one message is required")
        messages = [message for made in turns for message in made]
        if messages[-1].role == "assistant":
            unsupported(
                "This model does not support assistant message prefill. The conversation must end with a "
                "user message."
            )
        tools = tuple(fields.each("tools", _tool))
        return ModelRequest(
            model=fields.text("model"),
            messages=merge_systems([*_system(fields), *messages]),
            tools=tools,
            tool_choice=_tool_choice(fields, tools),
            parallel_tool_calls=not fields.child("tool_choice").flag("disable_parallel_tool_use"),
            max_tokens=fields.count("max_tokens"),
            stop=fields.texts("stop_sequences"),
            output=_output(fields),
            stream=fields.flag("stream"),
            asked=fields.only(_ASKED),
            headers=public_headers(headers),
        )

    def render(self, answers: Sequence[Answer], request: ModelRequest) -> bytes:
        """A `message` object."""
        del request
        (answer,) = answers
        out = {
            **_opening(answer.id, answer.model),
            "content": list(_blocks(answer.message)),
            **_stop(answer),
            "usage": _usage(answer.usage),
        }
        return json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode()

    def count(self, tokens: int) -> bytes:
        """A `message_tokens_count` object."""
        return json.dumps({"input_tokens": tokens}).encode()

    async def stream(
        self, deltas: AsyncIterator[Delta], stamp: Stamp, request: ModelRequest, prompt_tokens: int
    ) -> AsyncIterator[Event]:
        """Yields `message_start`, the content blocks, `message_delta` and `message_stop`."""
        del request
        message = {**_opening(stamp.id, stamp.model), "usage": _usage(TokenUsage(prompt_tokens, 0))}
        yield _event("message_start", message=message)
        writer = _BlockWriter()
        async for delta in deltas:
            if isinstance(delta, Finished):
                for event in writer.close():
                    yield event
                yield _event("message_delta", act=True, delta=_stop(delta), usage=_usage(delta.usage))
            else:
                for event in writer.write(delta):
                    yield event
        yield _event("message_stop", act=True)

    def keepalive(self) -> bytes:
        """A ping event."""
        return sse.encode({"type": "ping"}, "ping")

    def error(self, problem: Problem) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and `{"type": "error", ...}` body."""
        status, _ = _STATUS[problem.kind]
        headers = {"content-type": "application/json"}
        if problem.kind in ("sealed", "limit"):
            headers["x-should-retry"] = "false"
        if problem.kind in ("overloaded", "unavailable"):
            headers["retry-after"] = str(math.ceil(problem.retry_after_s or 1))
        return (
            status,
            headers,
            json.dumps({**_error(problem), "request_id": None}, ensure_ascii=False).encode(),
        )

    def stream_error(self, problem: Problem, stamp: Stamp) -> bytes:  # noqa: ARG002
        """An `error` event."""
        return sse.encode(_error(problem), "error")


@dataclass
class _BlockWriter:
    """Turns deltas into content blocks. One block is open at a time."""

    index: int = -1
    kind: str = ""
    """Type of the open block; empty when none is."""
    reasoning: str = ""
    """The text of the open thinking block so far; its signature is computed from it."""

    def write(self, delta: TextDelta | ReasoningDelta | ToolCallDelta) -> Iterator[Event]:
        """The events of one delta."""
        match delta:
            case TextDelta(text):
                yield from self._enter("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case ReasoningDelta(text):
                yield from self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                self.reasoning += text
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case ToolCallDelta(_, call):
                yield from self.close()
                yield from self._enter("tool_use", {**_tool_use(call), "input": {}})
                yield self._delta({"type": "input_json_delta", "partial_json": _input_text(call)}, act=True)
                yield from self.close()

    def close(self) -> Iterator[Event]:
        """Yields the events that end the open block, if there is one."""
        if self.kind == "thinking":
            yield self._delta({"type": "signature_delta", "signature": _signature(self.reasoning)})
            self.reasoning = ""
        if self.kind:
            yield _event("content_block_stop", act=self.kind == "tool_use", index=self.index)
        self.kind = ""

    def _enter(self, kind: str, block: dict[str, Any]) -> Iterator[Event]:
        if self.kind != kind:
            yield from self.close()
            self.kind = kind
            self.index += 1
            yield _event("content_block_start", index=self.index, content_block=block)

    def _delta(self, delta: dict[str, Any], *, act: bool = False) -> Event:
        return _event("content_block_delta", act=act, index=self.index, delta=delta)


def _event(kind: str, *, act: bool = False, **data: Any) -> Event:
    return Event(sse.encode({"type": kind, **data}, kind), act)


def _output(fields: Fields) -> OutputFormat | None:
    """The JSON output that is asked for, in `output_config.format` or the older `output_format`."""
    wanted = fields.child("output_config").child("format")
    wanted = wanted if wanted.raw else fields.child("output_format")
    if not wanted.raw:
        return None
    if wanted.text("type") != "json_schema":
        unsupported(
            f"{wanted.at('type')}: {wanted.raw['type']!r} is not supported by this endpoint; 'json_schema' "
            "is."
        )
    return OutputFormat(schema=wanted.child("schema").raw)


def _check_edits(fields: Fields) -> None:
    """Refuse edits of the history by the provider, except the one that keeps everything."""
    for edit in fields.child("context_management").children("edits"):
        if edit.text("type") != "clear_thinking_20251015" or edit.raw.get("keep") != "all":
            unsupported(
                f"{edit.path}: {edit.raw['type']!r} would edit the history, which this endpoint does not "
                "support."
            )


def _system(fields: Fields) -> list[Message]:
    value = fields.raw.get("system")
    texts = [value] if isinstance(value, str) else [_text(block) for block in fields.children("system")]
    return [Message("system", "\n".join(texts))] if any(texts) else []


def _messages(turn: Fields) -> list[Message]:
    """One turn as messages: each tool result and each stretch of text of a user turn is one, in order."""
    role = turn.text("role")
    content = turn.need("content")
    if role not in ("user", "assistant", "system"):
        malformed(f"{turn.at('role')}: Input should be 'user' or 'assistant'")
    plain = isinstance(content, str)
    if role == "system":
        return [
            Message(
                "system", content if plain else "\n".join(_text(block) for block in turn.children("content"))
            )
        ]
    if role == "assistant":
        return [Message("assistant", content) if plain else _assistant(turn.children("content"))]
    return [Message("user", content)] if plain else _user(turn.children("content"))


def _user(blocks: list[Fields]) -> list[Message]:
    out: list[Message] = []
    # Clients mix tool results and text in one turn; the messages keep that order.
    open_text = False
    for block in blocks:
        if block.text("type") == "tool_result":
            out.append(
                Message(
                    "tool",
                    _result(block),
                    tool_call_id=block.text("tool_use_id"),
                    images=_result_images(block),
                    is_error=block.flag("is_error"),
                )
            )
            open_text = False
            continue
        if not open_text:
            out.append(Message("user"))
            open_text = True
        if block.raw["type"] == "image":
            out[-1] = replace(out[-1], images=(*out[-1].images, _image(block)))
        else:
            joint = "\n" if out[-1].content else ""
            out[-1] = replace(out[-1], content=f"{out[-1].content}{joint}{_text(block)}")
    return out or [Message("user")]


def _assistant(blocks: list[Fields]) -> Message:
    content = ""
    reasoning = ""
    calls = []
    for block in blocks:
        match block.text("type"):
            case "thinking":
                reasoning += block.text("thinking")
            case "redacted_thinking":
                pass  # encrypted by another model's provider, so it cannot be read here
            case "tool_use":
                calls.append(ToolCall(block.text("id"), block.text("name"), _arguments(block)))
            case _:
                content += _text(block)
    return Message("assistant", content, reasoning=reasoning, tool_calls=tuple(calls))


def _arguments(block: Fields) -> str:
    tool_input = block.child("input").raw
    if list(tool_input) == [_RAW_ARGUMENTS] and isinstance(tool_input[_RAW_ARGUMENTS], str):
        return str(tool_input[_RAW_ARGUMENTS])
    return json.dumps(tool_input, ensure_ascii=False)


def _result(block: Fields) -> str:
    content = block.raw.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_text(part) for part in block.children("content") if part.raw.get("type") != "image")


def _result_images(block: Fields) -> tuple[str, ...]:
    parts = block.children("content") if isinstance(block.raw.get("content"), list) else []
    return tuple(_image(part) for part in parts if part.raw.get("type") == "image")


def _image(block: Fields) -> str:
    source = block.child("source")
    match source.text("type"):
        case "base64":
            return f"data:{source.text('media_type')};base64,{source.text('data')}"
        case "url":
            return source.text("url")
        case kind:
            return unsupported(f"{source.at('type')}: {kind!r} images are not supported by this endpoint.")


def _text(block: Fields) -> str:
    kind = block.text("type")
    if kind == "document" and block.child("source").raw.get("type") == "text":
        return block.child("source").text("data")
    if kind != "text":
        unsupported(f"{block.at('type')}: {kind!r} content is not supported by this endpoint here.")
    return block.text("text")


def _tool(fields: Fields) -> ToolSpec:
    if fields.text("type", "custom") != "custom":
        return client_tool(fields)
    return ToolSpec(fields.text("name"), fields.text("description", ""), fields.child("input_schema").raw)


def _tool_choice(fields: Fields, tools: tuple[ToolSpec, ...]) -> str:
    choice = fields.child("tool_choice")
    kind = choice.text("type", "auto")
    if kind == "tool":
        name = choice.text("name")
        if all(tool.name != name for tool in tools):
            malformed(f"tool_choice.name: {name!r} is not among the tools")
        return name
    if kind not in ("auto", "any", "none"):
        malformed("tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")
    return "required" if kind == "any" else kind


def _stop(end: Answer | Finished) -> dict[str, Any]:
    """The stop reason and stop sequence of an answer."""
    if end.stop_sequence is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop_sequence}
    reason = end.finish_reason if isinstance(end, Answer) else end.reason
    return {"stop_reason": _STOP_REASONS[reason], "stop_sequence": None}


def _opening(answer_id: str, model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{answer_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _blocks(message: Message) -> Iterator[dict[str, Any]]:
    if message.reasoning:
        yield {"type": "thinking", "thinking": message.reasoning, "signature": _signature(message.reasoning)}
    if message.content:
        yield {"type": "text", "text": message.content}
    for call in message.tool_calls:
        yield {**_tool_use(call), "input": json.loads(_input_text(call))}


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _input_text(call: ToolCall) -> str:
    """The call's input as the JSON text of an object, whatever the policy wrote."""
    return call.arguments if isinstance(call.parsed, dict) else json.dumps({_RAW_ARGUMENTS: call.arguments})


def _signature(reasoning: str) -> str:
    """The signature of a thinking block.

    Clients drop blocks without one. Nobody verifies it, so a digest of the text will do.
    """
    return base64.b64encode(hashlib.blake2b(reasoning.encode(), digest_size=32).digest()).decode()


def _usage(usage: TokenUsage) -> dict[str, Any]:
    """Token counts. In this protocol `input_tokens` does not include cached tokens."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _error(problem: Problem) -> dict[str, Any]:
    _, kind = _STATUS[problem.kind]
    message = problem.message
    if problem.kind == "overflow" and problem.tokens is not None and problem.max_tokens is not None:
        message = f"prompt is too long: {problem.tokens} tokens > {problem.max_tokens} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}}
