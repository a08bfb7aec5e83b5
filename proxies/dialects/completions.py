"""OpenAI text completions: a raw prompt in, its continuation out.

There is no chat template, no tools and no reasoning.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from proxies import sse
from proxies.dialect import (
    Answer,
    Delta,
    Event,
    Finished,
    FinishReason,
    ModelRequest,
    Stamp,
    TextDelta,
    TokenUsage,
    total_usage,
)
from proxies.dialects.body import Fields, malformed, public_headers, unsupported
from proxies.dialects.openai_protocol import (
    ErrorShape,
    OpenAIProtocol,
    completion_head,
    completion_usage,
    openai_routes,
    read_choices,
)

_ASKED = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias",
    "seed", "max_tokens", "stop",
)  # fmt: skip
_REFUSED = (
    "echo", "suffix", "prompt_logprobs", "prompt_embeds", "response_format", "structured_outputs",
    "guided_json",
    "guided_regex", "guided_choice", "guided_grammar", "truncate_prompt_tokens", "ignore_eos", "min_tokens",
    "use_beam_search",
)  # fmt: skip
_ERRORS = ErrorShape(
    "prompt",
    "This model's maximum context length is {max_tokens} tokens, however you requested {tokens} tokens in "
    "your prompt. Please reduce your prompt; or completion length.",
)
_MAX_TOKENS = 16
"""The protocol's default for requests without `max_tokens`."""
_MAX_ID = 2**31


class Completions(OpenAIProtocol):
    """POST /v1/completions."""

    name = "completions"
    routes = tuple(openai_routes("/completions"))
    errors = _ERRORS

    def parse(self, body: bytes, headers: Mapping[str, str]) -> ModelRequest:
        """Read a request. Raises `RequestProblem`."""
        fields = Fields.parse(body)
        fields.refuse(_REFUSED)
        if fields.given("logprobs"):
            unsupported("logprobs: not supported by this endpoint.")
        return ModelRequest(
            model=fields.text("model"),
            messages=(),
            prompt=_prompt(fields),
            max_tokens=fields.count("max_tokens") or _MAX_TOKENS,
            stop=fields.texts("stop"),
            n=_choices(fields),
            stream=fields.flag("stream"),
            include_usage=fields.child("stream_options").flag("include_usage"),
            asked=fields.only(_ASKED),
            headers=public_headers(headers),
        )

    def render(self, answers: Sequence[Answer], request: ModelRequest) -> bytes:
        """A `text_completion` object."""
        del request
        out = {
            **_head(Stamp(answers[0].id, answers[0].model, answers[0].created)),
            "choices": [
                _choice(index, answer.message.content, answer.finish_reason)
                for index, answer in enumerate(answers)
            ],
            "usage": completion_usage(total_usage([answer.usage for answer in answers])),
        }
        return json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode()

    async def stream(
        self, deltas: AsyncIterator[Delta], stamp: Stamp, request: ModelRequest, prompt_tokens: int
    ) -> AsyncIterator[Event]:
        """Yields `text_completion` events: text, finish reasons, usage if asked for, then `[DONE]`."""
        del prompt_tokens  # the protocol reports usage at the end
        head = {**_head(stamp), **({"usage": None} if request.include_usage else {})}
        used: list[TokenUsage] = []
        async for delta in deltas:
            match delta:
                case TextDelta(text, choice):
                    yield Event(sse.encode({**head, "choices": [_choice(choice, text)]}), act=False)
                case Finished(reason, usage, _, choice):
                    used.append(usage)
                    yield Event(sse.encode({**head, "choices": [_choice(choice, "", reason)]}), act=True)
                case _:
                    raise TypeError(f"A raw answer is text, it has no {type(delta).__name__}.")
        if request.include_usage:
            yield Event(
                sse.encode({**head, "choices": [], "usage": completion_usage(total_usage(used))}), act=True
            )
        yield Event(sse.DONE, act=True)


def _prompt(fields: Fields) -> str | tuple[int, ...]:
    """The one prompt of a request, as text or token ids; a batch of one is accepted."""
    value = fields.need("prompt")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            unsupported("prompt: one prompt a request is supported by this endpoint, not a batch of several.")
        value = value[0]
    if not value:
        malformed("prompt: expected text or token ids, at least one.")
    if isinstance(value, str):
        return value
    # `type(...) is int` and not `isinstance`: JSON's true and false are ints to Python.
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item < _MAX_ID for item in value):
        malformed("prompt: expected a string or an array of token ids.")
    return tuple(value)


def _choices(fields: Fields) -> int:
    n = read_choices(fields)
    if fields.count("best_of") not in (None, n):
        unsupported("best_of: not supported by this endpoint unless it equals n.")
    return n


def _head(stamp: Stamp) -> dict[str, Any]:
    return completion_head("cmpl", "text_completion", stamp)


def _choice(index: int, text: str, reason: FinishReason | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
