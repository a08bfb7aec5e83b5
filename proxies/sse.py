"""Server-sent events as bytes."""

import json
from typing import Any

KEEPALIVE = b": keepalive\n\n"
"""A comment, which every event-stream parser skips."""
DONE = b"data: [DONE]\n\n"
"""The end of an OpenAI stream."""


def encode(data: Any, event: str | None = None) -> bytes:
    """One event with JSON data."""
    # Non-ASCII is escaped by `json.dumps`: some clients split lines at U+2028 and U+2029.
    head = b"" if event is None else f"event: {event}\n".encode()
    return head + b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"
