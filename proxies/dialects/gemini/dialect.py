"""Google Gemini: generateContent, streamGenerateContent, countTokens."""

import base64
import hashlib
import json
import math
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from harnessgym.message import Message, ToolCall, canonical_json
from proxies import sse
from proxies.dialect import (
    Answer,
    Delta,
    Event,
    Finished,
    ModelRequest,
    Problem,
    ReasoningDelta,
    Route,
    Stamp,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
    total_usage,
)
from proxies.dialects.body import Fields, bearer, malformed, public_headers, unsupported
from proxies.dialects.gemini.contents import (
    RAW_ARGUMENTS,
    camel,
    many,
    only_known,
    read_contents,
    read_system,
    read_tool_choice,
    read_tools,
)
from proxies.dialects.gemini.generation_config import (
    read_asked,
    read_candidates,
    read_output,
    read_positive,
)

_METHODS: dict[str, Any] = {
    "generateContent": "generate",
    "streamGenerateContent": "generate",
    "countTokens": "count",
}
_MODEL = re.compile(r"/models/(.+):(\w+)$")
_REQUEST = frozenset(
    {"model", "contents", "systemInstruction", "tools", "toolConfig", "generationConfig",
        "generateContentRequest",
     "safetySettings", "serviceTier", "store", "labels"}
)  # fmt: skip
"""Members of a request that are read, or that have no effect here and are accepted."""
_REFUSED = ("cachedContent",)
_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}
_STATUS: dict[str, tuple[int, str]] = {
    "malformed": (400, "INVALID_ARGUMENT"),
    "unsupported": (400, "INVALID_ARGUMENT"),
    "unknown_key": (401, "UNAUTHENTICATED"),
    "sealed": (403, "PERMISSION_DENIED"),
    "limit": (403, "PERMISSION_DENIED"),
    "not_found": (404, "NOT_FOUND"),
    "too_large": (413, "INVALID_ARGUMENT"),
    "too_slow": (408, "DEADLINE_EXCEEDED"),
    "overflow": (400, "INVALID_ARGUMENT"),
    "overloaded": (429, "RESOURCE_EXHAUSTED"),
    "unavailable": (503, "UNAVAILABLE"),
    "upstream": (500, "INTERNAL"),
}
"""Maps a problem kind to HTTP status and Google status."""


def _routes() -> Iterator[Route]:
    """Yields every route; a model's name is one segment of the path or, as in `organisation/model`, two."""
    for version in ("v1beta", "v1"):
        for model in ("{model}", "{organisation}/{model}"):
            for method, purpose in _METHODS.items():
                yield Route("POST", f"/{version}/models/{model}:{method}", purpose)


class Gemini:
    """POST /v1beta/models/{model}:generateContent, :streamGenerateContent and :countTokens.

    The path names the model and says whether the answer is streamed.
    """

    name = "gemini"
    routes = tuple(_routes())
    marks: Sequence[str] = ("x-goog-api-client", "x-goog-api-key")
    tool_call_prefix = "call_"

    def secret(self, headers: Mapping[str, str]) -> str | None:
        """The `x-goog-api-key`, else `key` in the query, else the bearer token."""
        return headers.get("x-goog-api-key") or _query(headers).get("key") or bearer(headers)

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """Read a request. Raises `RequestProblem`."""
        model, method = _addressed(headers)
        fields = camel(Fields.parse(body))
        if method == "countTokens" and fields.given("generateContentRequest"):
            fields = camel(fields.child("generateContentRequest"))
        fields.refuse(_REFUSED)
        only_known(fields, _REQUEST)
        contents = many(fields, "contents")
        if not contents:
            malformed("* GenerateContentRequest.contents: contents is not specified")
        messages = read_contents(contents)
        if messages[-1].role == "assistant" and method != "countTokens":
            unsupported(
                "contents: please ensure that the conversation ends with a user turn or a function response."
            )
        tools = read_tools(fields)
        config = camel(fields.child("generationConfig"))
        return ModelRequest(
            model=model,
            messages=(*read_system(fields), *messages),
            tools=tools,
            tool_choice=read_tool_choice(fields, tools),
            max_tokens=read_positive(config, "maxOutputTokens"),
            stop=config.texts("stopSequences"),
            stream=method == "streamGenerateContent",
            stream_type="text/event-stream; charset=utf-8"
            if _sends_events(headers)
            else "application/json; charset=utf-8",
            n=read_candidates(config),
            output=read_output(config),
            asked=read_asked(config),
            headers=_public(headers),
        )

    def render(self, answers: Sequence[Answer], request: ModelRequest) -> bytes:
        """A `GenerateContentResponse`."""
        candidates = [
            _candidate(index, list(_parts(answer.message, _shows_thoughts(request))), answer.finish_reason)
            for index, answer in enumerate(answers)
        ]
        usage = total_usage([answer.usage for answer in answers])
        out = {"candidates": candidates, **_tail(answers[0].id, answers[0].model, usage)}
        return json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode()

    def count(self, tokens: int) -> bytes:
        """A `CountTokensResponse`."""
        return json.dumps(
            {"totalTokens": tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]}
        ).encode()

    async def stream(
        self, deltas: AsyncIterator[Delta], stamp: Stamp, request: ModelRequest, prompt_tokens: int
    ) -> AsyncIterator[Event]:
        """Yields one `GenerateContentResponse` per delta.

        They are sent as events under `alt=sse`, else as elements of one JSON array.
        """
        frame = _Frame(events=_sends_events(request.headers))
        # Until a candidate finishes, only the prompt's length is known; then the finished usages replace it.
        used = [TokenUsage(prompt_tokens, 0)]
        async for delta in deltas:
            match delta:
                case TextDelta(text, choice):
                    candidate = _candidate(choice, [{"text": text}])
                case ReasoningDelta(text, choice):
                    if not _shows_thoughts(request):
                        continue
                    candidate = _candidate(choice, [{"text": text, "thought": True}])
                case ToolCallDelta(_, call, choice):
                    candidate = _candidate(choice, [_function_call(call)])
                case Finished(reason, usage, _, choice):
                    used.append(usage)
                    candidate = _candidate(choice, [{"text": ""}], reason)
            tail = _tail(stamp.id, stamp.model, total_usage(used[1:] or used))
            yield Event(
                frame.write({"candidates": [candidate], **tail}),
                act=isinstance(delta, ToolCallDelta | Finished),
            )
        if end := frame.close():
            yield Event(end, act=True)

    def keepalive(self) -> bytes:
        """An empty line.

        Google's clients try to parse an event-stream comment as JSON. They skip whitespace, between events
        and inside an array.
        """
        return b"\n"

    def error(self, problem: Problem) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and `{"error": ...}` body."""
        headers = {"content-type": "application/json"}
        if problem.kind in ("sealed", "limit"):
            headers["x-should-retry"] = "false"
        if problem.kind in ("overloaded", "unavailable"):
            headers["retry-after"] = str(math.ceil(problem.retry_after_s or 1))
        return _STATUS[problem.kind][0], headers, json.dumps(_error(problem), ensure_ascii=False).encode()

    def stream_error(self, problem: Problem, stamp: Stamp) -> bytes:  # noqa: ARG002
        """The error as JSON on its own line, without `data:`, which is what Google's clients look for."""
        return json.dumps(_error(problem), separators=(",", ":")).encode() + b"\n"


def _sends_events(headers: Mapping[str, str]) -> bool:
    return _query(headers).get("alt") == "sse"


class _Frame:
    """Frames the responses of one stream, as events or as a JSON array."""

    def __init__(self, *, events: bool) -> None:
        self._events = events
        self._separator = b"["

    def write(self, response: dict[str, Any]) -> bytes:
        """The next response."""
        if self._events:
            return sse.encode(response)
        separator = self._separator
        self._separator = b",\n"
        return separator + json.dumps(response, separators=(",", ":")).encode()

    def close(self) -> bytes:
        """The bytes that end the stream."""
        return b"" if self._events else b"]\n"


def _addressed(headers: Mapping[str, str]) -> tuple[str, str]:
    """The model and the method in the path. Raises `RequestProblem` if they are missing."""
    match = _MODEL.search(headers.get(":path", ""))
    if match is None:
        malformed(
            "The path must name the model and the method, as in /v1beta/models/{model}:generateContent."
        )
    return match[1], match[2]


def _query(headers: Mapping[str, str]) -> dict[str, str]:
    return dict(parse_qsl(headers.get(":query", "")))


def _public(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers without secrets. The query may hold the key too, so it is removed there."""
    out = public_headers(headers)
    if ":query" in out:
        out[":query"] = urlencode({name: value for name, value in _query(headers).items() if name != "key"})
    return out


def _shows_thoughts(request: ModelRequest) -> bool:
    """Whether to send thoughts. Clients that did not ask for them would show them as the answer."""
    return bool(request.asked.get("thinkingConfig", {}).get("includeThoughts"))


def _parts(message: Message, thoughts: bool) -> Iterator[dict[str, Any]]:
    """Yields an answer's parts, at least one: clients drop a turn without parts."""
    if message.reasoning and thoughts:
        yield {"text": message.reasoning, "thought": True}
    if message.content or not message.tool_calls:
        yield {"text": message.content}
    yield from map(_function_call, message.tool_calls)


def _function_call(call: ToolCall) -> dict[str, Any]:
    """A `functionCall` part with a made-up thought signature.

    Clients expect a signature and send it back; nobody verifies it.
    """
    # The signature is a digest and not random, so that the same call is always the same bytes.
    args = call.parsed if isinstance(call.parsed, dict) else {RAW_ARGUMENTS: call.arguments}
    digest = hashlib.blake2b(canonical_json([call.name, args]).encode(), digest_size=24).digest()
    signature = base64.b64encode(digest).decode()
    return {"functionCall": {"id": call.id, "name": call.name, "args": args}, "thoughtSignature": signature}


def _candidate(index: int, parts: list[dict[str, Any]], reason: str | None = None) -> dict[str, Any]:
    end = {} if reason is None else {"finishReason": _FINISH[reason]}
    return {"content": {"parts": parts, "role": "model"}, **end, "index": index}


def _tail(answer_id: str, model: str, usage: TokenUsage) -> dict[str, Any]:
    """The members that follow the candidates: usage, model and response id."""
    counts = {"promptTokenCount": usage.prompt_tokens}
    if candidate_tokens := usage.completion_tokens - usage.reasoning_tokens:
        counts["candidatesTokenCount"] = candidate_tokens
    if usage.reasoning_tokens:
        counts["thoughtsTokenCount"] = usage.reasoning_tokens
    counts["totalTokenCount"] = usage.prompt_tokens + usage.completion_tokens
    if usage.cached_tokens:
        counts["cachedContentTokenCount"] = usage.cached_tokens
    return {"usageMetadata": counts, "modelVersion": model, "responseId": answer_id}


def _error(problem: Problem) -> dict[str, Any]:
    code, status = _STATUS[problem.kind]
    message = problem.message
    details = []
    if problem.kind == "overflow" and problem.tokens is not None and problem.max_tokens is not None:
        message = (
            f"The input token count ({problem.tokens}) exceeds the maximum number of tokens allowed "
            f"({problem.max_tokens})."
        )
    if problem.kind in ("overloaded", "unavailable"):
        details = [
            {
                "@type": "type.googleapis.com/google.rpc.RetryInfo",
                "retryDelay": f"{problem.retry_after_s or 1:g}s",
            }
        ]
    if problem.kind == "unknown_key":
        reason = {"reason": "API_KEY_INVALID", "domain": "googleapis.com"}
        details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", **reason}]
    return {
        "error": {
            "code": code,
            "message": message,
            "status": status,
            **({"details": details} if details else {}),
        }
    }
