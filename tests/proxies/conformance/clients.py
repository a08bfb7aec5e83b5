"""The official SDKs behind one interface: a conversation in neutral messages goes in, what the SDK read comes
out.

Each client renders the history as its users do, from what earlier answers gave it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import anthropic
import google.genai
import google.genai.errors
import openai
from google.genai import types as google_types

from harnessgym.message import Message, ToolCall, ToolSpec
from harnessgym.proxy_client import trust_for


@dataclass(frozen=True)
class Asked:
    """One request."""

    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    n: int = 1
    max_tokens: int = 200
    stop: Sequence[str] = ()


@dataclass
class Reply:
    """What the SDK read."""

    messages: list[Message] = field(default_factory=list)
    """One per choice."""
    finish: list[str] = field(default_factory=list)
    """stop, length or tool_calls, per choice."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None
    """None where the client is not told."""


class Client(Protocol):
    """One SDK."""

    protocol: str
    refused: type[Exception]
    """Raised when the proxy answers 400."""
    siblings: bool
    """Whether the protocol has several answers to one request."""
    chats: bool
    """Whether it has messages and tools."""

    async def ask(self, url: str, key: str, asked: Asked, *, stream: bool) -> Reply:
        """Ask and read the whole answer."""
        ...


_PLAIN = {"verify": trust_for("http:")}
"""Options of the SDKs' HTTP clients: loading certificates for each takes longer than the test."""


def openai_at(url: str, key: str) -> openai.AsyncOpenAI:
    """The SDK as its users have it."""
    http = openai.DefaultAsyncHttpxClient(**_PLAIN)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http)


def anthropic_at(url: str, key: str) -> anthropic.AsyncAnthropic:
    """The SDK as its users have it."""
    http = anthropic.DefaultAsyncHttpxClient(**_PLAIN)
    return anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, http_client=http)


class OpenAIChat:
    protocol, refused, siblings, chats = "chat", openai.BadRequestError, True, True
    _FINISH: Mapping[str, str] = {}

    async def ask(self, url: str, key: str, asked: Asked, *, stream: bool) -> Reply:
        async with openai_at(url, key) as client:
            options: dict[str, Any] = {"n": asked.n} if asked.n > 1 else {}
            options |= {"tools": [tool.to_template() for tool in asked.tools]} if asked.tools else {}
            options |= {"stop": list(asked.stop)} if asked.stop else {}
            messages: Any = [_chat(message) for message in asked.messages]
            common: dict[str, Any] = {
                "model": "m",
                "messages": messages,
                "max_tokens": asked.max_tokens,
                **options,
            }
            if not stream:
                return self._read((await client.chat.completions.create(**common)).model_dump())
            whole = _ChatStream()
            common |= {"stream": True, "stream_options": {"include_usage": True}}
            async for chunk in await client.chat.completions.create(**common):
                whole.take(chunk.model_dump())
            return self._read(whole.body())

    @staticmethod
    def _read(body: dict[str, Any]) -> Reply:
        usage = body["usage"]
        reply = Reply(prompt_tokens=usage["prompt_tokens"], completion_tokens=usage["completion_tokens"])
        reply.reasoning_tokens = usage["completion_tokens_details"]["reasoning_tokens"]
        for choice in sorted(body["choices"], key=lambda choice: choice["index"]):
            said = choice["message"]
            calls = tuple(
                ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
                for call in said.get("tool_calls") or ()
            )
            reasoning = said.get("reasoning_content") or ""
            reply.messages.append(Message("assistant", said["content"] or "", reasoning, calls))
            reply.finish.append(choice["finish_reason"])
        return reply


class _ChatStream:
    """Puts chunks together as the SDK's users do."""

    def __init__(self) -> None:
        self._choices: dict[int, dict[str, Any]] = {}
        self._usage: dict[str, Any] = {}

    def take(self, chunk: dict[str, Any]) -> None:
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            empty = {
                "index": choice["index"],
                "message": {"content": "", "reasoning_content": "", "tool_calls": []},
            }
            known = self._choices.setdefault(choice["index"], empty)
            delta, said = choice["delta"], known["message"]
            said["content"] += delta.get("content") or ""
            said["reasoning_content"] += delta.get("reasoning_content") or ""
            said["tool_calls"] += delta.get("tool_calls") or []
            known["finish_reason"] = choice["finish_reason"] or known.get("finish_reason")

    def body(self) -> dict[str, Any]:
        return {"choices": list(self._choices.values()), "usage": self._usage}


class OpenAIResponses:
    protocol, refused, siblings, chats = "responses", openai.BadRequestError, False, True

    async def ask(self, url: str, key: str, asked: Asked, *, stream: bool) -> Reply:
        async with openai_at(url, key) as client:
            options: dict[str, Any] = (
                {"tools": [_response_tool(tool) for tool in asked.tools]} if asked.tools else {}
            )
            items: Any = [item for message in asked.messages for item in _response_items(message)]
            common: dict[str, Any] = {
                "model": "m",
                "input": items,
                "max_output_tokens": asked.max_tokens,
                **options,
            }
            common["include"] = ["reasoning.encrypted_content"]
            if not stream:
                return self._read((await client.responses.create(**common)).model_dump())
            whole: Reply | None = None
            async for event in await client.responses.create(**common, stream=True):
                if event.type in ("response.completed", "response.incomplete"):
                    whole = self._read(event.response.model_dump())
            assert whole is not None
            return whole

    @staticmethod
    def _read(body: dict[str, Any]) -> Reply:
        content, reasoning, calls = "", "", []
        for item in body["output"]:
            match item["type"]:
                case "message":
                    content += "".join(part["text"] for part in item["content"])
                case "reasoning":
                    reasoning += "".join(part["text"] for part in item["summary"])
                case "function_call":
                    calls.append(ToolCall(item["call_id"], item["name"], item["arguments"]))
        finish = "length" if body["status"] == "incomplete" else "tool_calls" if calls else "stop"
        usage = body["usage"]
        message = _Sent("assistant", content, reasoning, tuple(calls))
        message.items = body["output"]
        thought = usage["output_tokens_details"]["reasoning_tokens"]
        return Reply([message], [finish], usage["input_tokens"], usage["output_tokens"], thought)


class _Sent(Message):
    """An answer with the items in which it came: clients send those back."""

    items: list[dict[str, Any]]

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__[name] = value


class AnthropicMessages:
    protocol, refused, siblings, chats = "messages", anthropic.BadRequestError, False, True
    _FINISH: Mapping[str, str] = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "tool_use": "tool_calls",
    }

    async def ask(self, url: str, key: str, asked: Asked, *, stream: bool) -> Reply:
        async with anthropic_at(url, key) as client:
            options: dict[str, Any] = (
                {"tools": [_anthropic_tool(tool) for tool in asked.tools]} if asked.tools else {}
            )
            options |= {"stop_sequences": list(asked.stop)} if asked.stop else {}
            system = "\n".join(message.content for message in asked.messages if message.role == "system")
            options |= {"system": system} if system else {}
            turns: Any = [_anthropic(message) for message in asked.messages if message.role != "system"]
            common: dict[str, Any] = {
                "model": "m",
                "messages": turns,
                "max_tokens": asked.max_tokens,
                **options,
            }
            if not stream:
                return self._read((await client.messages.create(**common)).model_dump())
            async with client.messages.stream(**common) as events:
                return self._read((await events.get_final_message()).model_dump())

    def _read(self, body: dict[str, Any]) -> Reply:
        content, reasoning, calls = "", "", []
        for block in body["content"]:
            match block["type"]:
                case "text":
                    content += block["text"]
                case "thinking":
                    assert block["signature"]
                    reasoning += block["thinking"]
                case "tool_use":
                    calls.append(ToolCall(block["id"], block["name"], json.dumps(block["input"])))
        usage = body["usage"]
        prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
        message = Message("assistant", content, reasoning, tuple(calls))
        return Reply([message], [self._FINISH[body["stop_reason"]]], prompt, usage["output_tokens"])


class GoogleGenerateContent:
    protocol, refused, siblings, chats = "gemini", google.genai.errors.ClientError, True, True
    _FINISH: Mapping[str, str] = {"STOP": "stop", "MAX_TOKENS": "length"}

    async def ask(self, url: str, key: str, asked: Asked, *, stream: bool) -> Reply:
        client = google.genai.Client(
            api_key=key,
            http_options=google_types.HttpOptions(base_url=url, client_args=_PLAIN, async_client_args=_PLAIN),
        )
        system = "\n".join(message.content for message in asked.messages if message.role == "system")
        declared = [
            google_types.FunctionDeclaration(
                name=tool.name, description=tool.description, parameters_json_schema=tool.parameters
            )
            for tool in asked.tools
        ]
        config = google_types.GenerateContentConfig(
            max_output_tokens=asked.max_tokens,
            stop_sequences=list(asked.stop) or None,
            candidate_count=asked.n if asked.n > 1 else None,
            system_instruction=system or None,
            tools=[google_types.Tool(function_declarations=declared)] if declared else None,
            thinking_config=google_types.ThinkingConfig(include_thoughts=True),
            automatic_function_calling=google_types.AutomaticFunctionCallingConfig(disable=True),
        )
        names = {call.id: call.name for message in asked.messages for call in message.tool_calls}
        contents: Any = [_gemini(message, names) for message in asked.messages if message.role != "system"]
        try:
            whole = Reply()
            if not stream:
                answer = await client.aio.models.generate_content(model="m", contents=contents, config=config)
                self._take(whole, answer)
                return whole
            async for chunk in await client.aio.models.generate_content_stream(
                model="m", contents=contents, config=config
            ):
                self._take(whole, chunk)
            return whole
        finally:
            await client.aio.aclose()

    def _take(self, whole: Reply, chunk: google_types.GenerateContentResponse) -> None:
        for candidate in chunk.candidates or ():
            index = candidate.index or 0
            while len(whole.messages) <= index:
                whole.messages.append(Message("assistant"))
                whole.finish.append("")
            said = whole.messages[index]
            content, reasoning, calls = said.content, said.reasoning, list(said.tool_calls)
            for part in (candidate.content.parts if candidate.content else None) or ():
                if part.function_call is not None:
                    call = part.function_call
                    calls.append(ToolCall(call.id or "", call.name or "", json.dumps(call.args)))
                elif part.thought:
                    reasoning += part.text or ""
                else:
                    content += part.text or ""
            whole.messages[index] = Message("assistant", content, reasoning, tuple(calls))
            if candidate.finish_reason is not None:
                named = self._FINISH[candidate.finish_reason.name]
                whole.finish[index] = "tool_calls" if calls and named == "stop" else named
        if chunk.usage_metadata is not None:
            usage = chunk.usage_metadata
            whole.prompt_tokens = usage.prompt_token_count or 0
            whole.completion_tokens = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)


class OpenAICompletions:
    protocol, refused, siblings, chats = "completions", openai.BadRequestError, True, False

    async def ask(self, url: str, key: str, asked: Asked, *, stream: bool) -> Reply:
        async with openai_at(url, key) as client:
            prompt = "".join(message.content for message in asked.messages)
            options: dict[str, Any] = {"n": asked.n} if asked.n > 1 else {}
            options |= {"stop": list(asked.stop)} if asked.stop else {}
            common: dict[str, Any] = {
                "model": "m",
                "prompt": prompt,
                "max_tokens": asked.max_tokens,
                **options,
            }
            texts: dict[int, str] = {}
            ends: dict[int, str] = {}
            usage: Any = None
            if stream:
                common |= {"stream": True, "stream_options": {"include_usage": True}}
                async for chunk in await client.completions.create(**common):
                    usage = chunk.usage or usage
                    for choice in chunk.choices:
                        texts[choice.index] = texts.get(choice.index, "") + choice.text
                        if choice.finish_reason:
                            ends[choice.index] = choice.finish_reason
            else:
                answer = await client.completions.create(**common)
                usage = answer.usage
                texts = {choice.index: choice.text for choice in answer.choices}
                ends = {choice.index: choice.finish_reason for choice in answer.choices}
            messages = [Message("assistant", texts[index]) for index in sorted(texts)]
            return Reply(
                messages,
                [ends[index] for index in sorted(ends)],
                usage.prompt_tokens,
                usage.completion_tokens,
            )


CLIENTS: tuple[Client, ...] = (
    OpenAIChat(),
    OpenAIResponses(),
    AnthropicMessages(),
    GoogleGenerateContent(),
    OpenAICompletions(),
)


def _chat(message: Message) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role, "content": message.content or None}
    if message.images:
        shown = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
        out["content"] = [{"type": "text", "text": message.content}, *shown]
    if message.reasoning:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out |= {"tool_call_id": message.tool_call_id, "content": message.content}
    return out


def _response_tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,
    }


def _response_items(message: Message) -> list[dict[str, Any]]:
    if isinstance(message, _Sent):
        return [{name: value for name, value in item.items() if value is not None} for item in message.items]
    if message.role == "tool":
        return [{"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}]
    parts: list[dict[str, Any]] = [{"type": "input_text", "text": message.content}]
    parts += [{"type": "input_image", "image_url": url, "detail": "auto"} for url in message.images]
    return [{"type": "message", "role": message.role, "content": parts}]


def _anthropic_tool(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _anthropic(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": message.content}
        return {"role": "user", "content": [result]}
    if message.role == "user":
        shown = [
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]},
            }
            for url in message.images
        ]
        return {"role": "user", "content": [{"type": "text", "text": message.content}, *shown]}
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": "c2ln"})
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    blocks += [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": blocks}


def _gemini(message: Message, names: Mapping[str, str]) -> dict[str, Any]:
    if message.role == "tool":
        name = names[message.tool_call_id or ""]
        result = {"id": message.tool_call_id, "name": name, "response": {"output": message.content}}
        return {"role": "user", "parts": [{"function_response": result}]}
    parts: list[dict[str, Any]] = []
    if message.reasoning:
        parts.append({"text": message.reasoning, "thought": True})
    if message.content:
        parts.append({"text": message.content})
    parts += [
        {"inline_data": {"mime_type": "image/png", "data": url.partition(",")[2]}} for url in message.images
    ]
    parts += [
        {"function_call": {"id": call.id, "name": call.name, "args": json.loads(call.arguments)}}
        for call in message.tool_calls
    ]
    return {"role": "model" if message.role == "assistant" else "user", "parts": parts}
