"""Requests of the Responses protocol as they stand on the wire, and what the dialect makes of them."""

import json
from typing import Any

from harnessgym.message import Message, ToolCall
from proxies.dialect import ModelRequest
from proxies.dialects.responses.dialect import Responses

RESPONSES = Responses()
USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "find", "description": "Find.", "parameters": SCHEMA, "strict": False}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Patch.", "format": {"type": "text"}}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "Agents.",
    "tools": [{**FUNCTION, "name": "spawn"}, PATCH],
}
TOOLS = [FUNCTION, PATCH, AGENTS]
FIND = ToolCall("call_a1_0", "find", '{"name":  "lamp"}')
ENCRYPTED = ["reasoning.encrypted_content"]


def parse(path: str = "/v1/responses", **fields: Any) -> ModelRequest:
    return RESPONSES.parse(json.dumps({"model": "m", "input": [USER], **fields}).encode(), {":path": path})


def messages(*items: dict[str, Any]) -> tuple[Message, ...]:
    return parse(input=list(items)).messages
