"""Anthropic's tools that the client runs: bash, text editor, memory, computer.

A request names them by type only, because the provider's models know them. A policy does not, so it is given
each as a function with a description and the arguments that the client understands. Its calls are ordinary
`tool_use` blocks. Source of names and arguments: Anthropic's tool documentation, and the types of its Python
SDK (`BetaMemoryTool20250818Command` and others).
"""

from typing import Any

from harnessgym.message import ToolSpec
from proxies.dialects.body import Fields, unsupported

_STRING = {"type": "string"}
_INTEGER = {"type": "integer"}
_POINT = {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2}
_BASH = ToolSpec(
    "bash",
    "Run a command in a bash session that keeps its state between calls. `restart` starts a new session.",
    {"type": "object", "properties": {"command": _STRING, "restart": {"type": "boolean"}}},
)
_EDITS = ("view", "create", "str_replace", "insert")
_EDITOR = (
    "View and edit files. `view` shows a file, or its lines in `view_range`, or lists a folder. `create` "
    "writes `file_text` to a new file. `str_replace` replaces `old_str`, which must occur exactly once, by "
    "`new_str`. `insert` puts `{text}` after line `insert_line`."
)
_UNDO = " `undo_edit` takes the last edit of a file back."
_MEMORY = ToolSpec(
    "memory",
    "Keep notes in files below /memories, which last beyond this conversation. `view` shows a file or lists "
    "a folder; `create` writes a file; `str_replace` and `insert` edit one; `delete` removes and `rename` "
    "moves a file or folder.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "string", "enum": [*_EDITS, "delete", "rename"]},
            **dict.fromkeys(
                ("path", "file_text", "old_str", "new_str", "insert_text", "old_path", "new_path"), _STRING
            ),
            "insert_line": _INTEGER,
            "view_range": _POINT,
        },
        "required": ["command"],
    },
)
_ACTIONS = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click",
            "double_click", "screenshot", "cursor_position")  # fmt: skip
_LATER_ACTIONS = ("triple_click", "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait")


def client_tool(fields: Fields) -> ToolSpec:
    """The tool of a type such as `bash_20250124`. Raises `RequestProblem` for one that the provider runs."""
    kind = fields.text("type")
    name, _, version = kind.rpartition("_")
    match name:
        case "bash":
            return _BASH
        case "text_editor":
            return _editor(version)
        case "memory":
            return _MEMORY
        case "computer":
            return _computer(fields, version)
    return unsupported(
        f"{fields.at('type')}: {kind!r} tools are not supported by this endpoint: the provider runs them. "
        "'custom' tools and those that the client runs are: bash, text_editor, memory, computer."
    )


def _editor(version: str) -> ToolSpec:
    """The editor. Versions of before May 2025 have another name, and can take edits back."""
    early = version < "20250429"
    text = "new_str" if early else "insert_text"
    commands = [*_EDITS, "undo_edit"] if early else list(_EDITS)
    strings = dict.fromkeys(("path", "file_text", "old_str", "new_str", text), _STRING)
    properties = {"command": {"type": "string", "enum": commands}, **strings}
    return ToolSpec(
        "str_replace_editor" if early else "str_replace_based_edit_tool",
        _EDITOR.replace("{text}", text) + (_UNDO if early else ""),
        {
            "type": "object",
            "properties": {**properties, "insert_line": _INTEGER, "view_range": _POINT},
            "required": ["command", "path"],
        },
    )


def _computer(fields: Fields, version: str) -> ToolSpec:
    sides = ("display_width_px", "display_height_px")
    for side in sides:
        fields.need(side)
    width, height = map(fields.count, sides)
    actions = list(_ACTIONS)
    properties: dict[str, Any] = {
        "action": {"type": "string", "enum": actions},
        "coordinate": _POINT,
        "start_coordinate": _POINT,
        "text": _STRING,
    }
    if version >= "20250124":
        actions += _LATER_ACTIONS
        properties["scroll_direction"] = {"type": "string", "enum": ["up", "down", "left", "right"]}
        properties |= {"scroll_amount": _INTEGER, "duration": {"type": "number"}}
    about = f"Use a screen of {width} x {height} pixels, a mouse and a keyboard. Coordinates are [x, y]."
    return ToolSpec("computer", about, {"type": "object", "properties": properties, "required": ["action"]})
