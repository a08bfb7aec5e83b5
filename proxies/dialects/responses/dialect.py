"""OpenAI's Responses API.

The policy sees an answer's items as one message: `responses.input` joins them, `responses.answer` splits
them.

- Hosted tools (web search, code interpreter, MCP, a provider's shell, ...) are refused: dropping them would
  silently change the task. Harnesses have a switch for them, e.g. `web_search = "disabled"` for Codex.
- Tools that the client runs (local shell, shell, apply_patch, computer) are functions for the policy, and
  items of their own types for the client; see `responses.client_tools`.
- The grammar of a custom tool goes into its description. Sampling is never constrained to it.
- `truncation`, `store`, `service_tier`, caching and user fields do not affect sampling and are accepted.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harnessgym.message import Message, canonical_json
from proxies import sse
from proxies.dialect import Answer, Delta, Event, Finished, ModelRequest, OutputFormat, Problem, Stamp
from proxies.dialects.body import Fields, malformed, merge_systems, public_headers, unsupported
from proxies.dialects.openai_protocol import ErrorShape, OpenAIProtocol, openai_routes
from proxies.dialects.responses.answer import (
    ItemWriter,
    ResponseStream,
    failed_body,
    response_body,
    response_head,
)
from proxies.dialects.responses.input import read_input
from proxies.dialects.responses.tools import read_choice, read_tools
from proxies.previous import call_of

_ASKED = (
    "temperature", "top_p", "max_output_tokens", "parallel_tool_calls", "reasoning", "include", "store",
    "metadata",
    "truncation", "previous_response_id",
)  # fmt: skip
_REFUSED = ("background", "conversation", "prompt", "top_logprobs", "moderation", "context_management")
_ERRORS = ErrorShape(
    "input", "Your input exceeds the context window of this model. Please adjust your input and try again."
)
_COUNT = "/responses/input_tokens"


class Responses(OpenAIProtocol):
    """POST /v1/responses."""

    name = "responses"
    routes = (*openai_routes("/responses"), *openai_routes(_COUNT, "count"))
    errors = _ERRORS

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """Read a request. Raises `RequestProblem`.

        Instructions stay a separate message, so that a later request can continue without them.
        """
        fields = Fields.parse(body)
        _refuse_options(fields)
        counting = headers.get(":path", "").endswith(_COUNT)
        previous = (
            call_of(fields.text("previous_response_id")) if fields.given("previous_response_id") else None
        )
        conversation = read_input(fields)
        if not conversation.messages and previous is None:
            malformed("input: Field required")
        instructions = fields.text("instructions", "")
        tools = read_tools(fields)
        begun = (Message("system", instructions),) if instructions else ()
        request = ModelRequest(
            model=fields.text("model", "" if counting else None),
            messages=(*begun, *merge_systems(conversation.messages)),
            tools=tools,
            tool_choice=read_choice(fields, tools),
            parallel_tool_calls=fields.flag("parallel_tool_calls", default=True),
            max_tokens=fields.count("max_output_tokens"),
            stream=fields.flag("stream"),
            output=_output(fields),
            previous=previous,
            instructions=bool(instructions),
            identity=_identity(fields.raw, conversation.identity),
            asked=fields.only(_ASKED),
            headers=public_headers(headers),
        )
        if not conversation.refers_to:
            return request
        return replace(
            request,
            refers_to=conversation.refers_to,
            fill=lambda answers: replace(
                request, messages=(*begun, *merge_systems(conversation.filled(answers)))
            ),
        )

    def render(self, answers: Sequence[Answer], request: ModelRequest) -> bytes:
        """A `response` object."""
        (answer,) = answers
        head = response_head(Stamp(answer.id, answer.model, answer.created), request)
        output = ItemWriter(answer.id, request).output(answer.message, answer.finish_reason)
        return json.dumps(
            response_body(head, output, answer.finish_reason, answer.usage), separators=(",", ":")
        ).encode()

    def count(self, tokens: int) -> bytes:
        """A `response.input_tokens` object."""
        return json.dumps({"object": "response.input_tokens", "input_tokens": tokens}).encode()

    async def stream(
        self, deltas: AsyncIterator[Delta], stamp: Stamp, request: ModelRequest, prompt_tokens: int
    ) -> AsyncIterator[Event]:
        """Yields `response.created`, `response.in_progress`, the items' events, and the end.

        The end is `response.completed`, or `response.incomplete` for an answer cut at its length.
        """
        del prompt_tokens  # the protocol reports usage at the end
        stream = ResponseStream(stamp, request)
        for event in stream.begin():
            yield event
        async for delta in deltas:
            for event in stream.finish(delta) if isinstance(delta, Finished) else stream.write(delta):
                yield event

    def stream_error(self, problem: Problem, stamp: Stamp) -> bytes:
        """An `error` event, on which SDKs raise, then `response.failed`, which Codex reads."""
        error = _ERRORS.describe(problem)
        flat = {name: error[name] for name in ("code", "message", "param")}
        first = {"type": "error", "sequence_number": 0, **flat, "error": error}
        second = {"type": "response.failed", "sequence_number": 1, "response": failed_body(stamp.id, error)}
        return sse.encode(first, "error") + sse.encode(second, "response.failed")


def _identity(body: Mapping[str, Any], conversation: str) -> str:
    """The text that equal requests share; `conversation` is the identity of `input`."""
    # Codex writes `client_metadata` in another order when it retries, so that member does not count.
    rest = {name: value for name, value in body.items() if name not in ("client_metadata", "input")}
    return f"{canonical_json(rest)}\n{conversation}"


def _refuse_options(fields: Fields) -> None:
    fields.refuse(_REFUSED)
    if "message.output_text.logprobs" in fields.texts("include"):
        unsupported("include: 'message.output_text.logprobs' is not supported by this endpoint.")


def _output(fields: Fields) -> OutputFormat | None:
    form = fields.child("text").child("format")
    kind = form.text("type", "text")
    if kind == "json_schema":
        return OutputFormat(form.text("name"), form.child("schema").raw)
    if kind not in ("text", "json_object"):
        unsupported(f"{form.at('type')}: {kind!r} is not supported by this endpoint.")
    return OutputFormat() if kind == "json_object" else None
