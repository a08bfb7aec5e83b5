"""What OpenAI's protocols share: keys, errors, keepalives and common fields."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxies import sse
from proxies.dialect import Problem, Purpose, Route, Stamp, TokenUsage
from proxies.dialects.body import Fields, bearer, malformed

_STATUS: dict[str, tuple[int, str, str | None]] = {
    "malformed": (400, "invalid_request_error", None),
    "unsupported": (400, "invalid_request_error", "unsupported_value"),
    "unknown_key": (401, "invalid_request_error", "invalid_api_key"),
    "sealed": (403, "invalid_request_error", "session_sealed"),
    "limit": (403, "insufficient_quota", "session_limit_reached"),
    "not_found": (404, "invalid_request_error", "not_found"),
    "too_large": (413, "invalid_request_error", "request_too_large"),
    "too_slow": (408, "invalid_request_error", "request_timeout"),
    "overflow": (400, "invalid_request_error", "context_length_exceeded"),
    "overloaded": (429, "rate_limit_error", "rate_limit_exceeded"),
    "unavailable": (503, "server_error", "service_unavailable"),
    "upstream": (502, "server_error", None),
}
"""Maps a problem kind to HTTP status, error type and error code."""


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How one of the protocols words its errors."""

    overflow_param: str
    """The request field that is too long."""
    overflow_text: str
    """The provider's message; `{tokens}` and `{max_tokens}` stand for the prompt's length and its limit."""

    def describe(self, problem: Problem) -> dict[str, Any]:
        """The error object: message, type, param, code."""
        _, kind, code = _STATUS[problem.kind]
        message = problem.message
        param = None
        if problem.kind == "overflow":
            param = self.overflow_param
            if problem.tokens is not None and problem.max_tokens is not None:
                message = self.overflow_text.format(tokens=problem.tokens, max_tokens=problem.max_tokens)
        return {"message": message, "type": kind, "param": param, "code": problem.code or code}

    def respond(self, problem: Problem) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and `{"error": ...}` body."""
        headers = {"content-type": "application/json"}
        # OpenAI's SDKs obey `x-should-retry`: without it they would repeat a request that cannot succeed.
        if problem.kind in ("sealed", "limit"):
            headers["x-should-retry"] = "false"
        if problem.kind in ("overloaded", "unavailable"):
            headers["retry-after"] = str(math.ceil(problem.retry_after_s or 1))
        body = json.dumps({"error": self.describe(problem)}, ensure_ascii=False).encode()
        return _STATUS[problem.kind][0], headers, body


_MAX_CHOICES = 128


def openai_routes(path: str, purpose: Purpose = "generate") -> Iterator[Route]:
    """Yields the routes of an endpoint: OpenAI's, with and without `/v1`, and Azure's, which name a
    deployment or not.
    """
    for prefix in ("/v1", "", "/openai/v1", "/openai/deployments/{deployment}"):
        yield Route("POST", f"{prefix}{path}", purpose)


class OpenAIProtocol:
    """The parts of a dialect that all OpenAI protocols share."""

    marks: Sequence[str] = ("openai-organization", "api-key")
    tool_call_prefix = "call_"
    errors: ErrorShape
    """How this protocol words its errors."""

    def secret(self, headers: Mapping[str, str]) -> str | None:
        """The bearer token, else Azure's `api-key`."""
        return bearer(headers) or headers.get("api-key")

    def count(self, tokens: int) -> bytes:
        """Not supported: most of the protocols have no route that counts tokens."""
        raise NotImplementedError

    def keepalive(self) -> bytes:
        """An event-stream comment."""
        return sse.KEEPALIVE

    def error(self, problem: Problem) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and `{"error": ...}` body."""
        return self.errors.respond(problem)

    def stream_error(self, problem: Problem, stamp: Stamp) -> bytes:  # noqa: ARG002
        """A data event with an `error` member; clients raise an exception when they see it."""
        return sse.encode({"error": self.errors.describe(problem)})


def read_choices(fields: Fields) -> int:
    """The number of answers to sample. Raises `RequestProblem` above the limit."""
    n = fields.count("n") or 1
    if n > _MAX_CHOICES:
        malformed(f"n: expected at most {_MAX_CHOICES}.")
    return n


def read_choice_word(fields: Fields) -> str | None:
    """`tool_choice` if it is a string, and `auto` if it is absent; None for an object that names a tool."""
    choice = fields.raw.get("tool_choice")
    if choice is not None and not isinstance(choice, str):
        return None
    if choice not in (None, "auto", "none", "required"):
        malformed(f"tool_choice: {choice!r} is not one of 'auto', 'none', 'required'.")
    return choice or "auto"


def completion_head(prefix: str, kind: str, stamp: Stamp) -> dict[str, Any]:
    """The fields that begin every chat or text completion, whole or chunk."""
    return {
        "id": f"{prefix}-{stamp.id}",
        "object": kind,
        "created": stamp.created,
        "model": stamp.model,
        "system_fingerprint": None,
    }


def completion_usage(usage: TokenUsage) -> dict[str, Any]:
    """Token counts of a chat or text completion."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
