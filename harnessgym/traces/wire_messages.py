"""Messages and tools in OpenAI's chat format, with arguments as the text that the policy wrote."""

from typing import Any

from harnessgym.message import Message, ToolSpec

Json = dict[str, Any]


def to_wire(message: Message) -> Json:
    """Return a message in chat format, plus `is_error` if it is set. Parsing it gives the same message."""
    out = message.to_chat()
    for call, written in zip(message.tool_calls, out.get("tool_calls", ()), strict=True):
        written["function"]["arguments"] = call.arguments
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id or ""
    return out


def tools_to_wire(tools: tuple[ToolSpec, ...]) -> list[Json]:
    """Return tools in the chat format."""
    return [tool.to_template() for tool in tools]
