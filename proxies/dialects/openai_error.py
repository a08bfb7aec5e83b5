"""Errors as OpenAI's protocols word them. The protocols differ only in how they say that a prompt is too
long.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from proxies.dialect import Problem

_STATUS: dict[str, tuple[int, str, str | None]] = {
    "malformed": (400, "invalid_request_error", None),
    "unsupported": (400, "invalid_request_error", "unsupported_value"),
    "unknown_key": (401, "invalid_request_error", "invalid_api_key"),
    "sealed": (403, "invalid_request_error", "session_sealed"),
    "limit": (403, "insufficient_quota", "session_limit_reached"),
    "not_found": (404, "invalid_request_error", "not_found"),
    "too_large": (413, "invalid_request_error", "request_too_large"),
    "overflow": (400, "invalid_request_error", "context_length_exceeded"),
    "overloaded": (429, "rate_limit_error", "rate_limit_exceeded"),
    "unavailable": (503, "server_error", "service_unavailable"),
    "upstream": (502, "server_error", None),
}
"""Problem kind to HTTP status, error type and error code."""


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """How one of the protocols says what went wrong."""

    overflow_param: str
    """The request field that is too long."""
    overflow_text: str
    """The provider's sentence; `{tokens}` and `{max_tokens}` stand for the prompt's length and its limit."""

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
        if problem.kind in ("sealed", "limit"):
            headers["x-should-retry"] = "false"
        if problem.kind in ("overloaded", "unavailable"):
            headers["retry-after"] = str(math.ceil(problem.retry_after_s or 1))
        body = json.dumps({"error": self.describe(problem)}, ensure_ascii=False).encode()
        return _STATUS[problem.kind][0], headers, body
