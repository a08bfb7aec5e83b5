"""The computer as a tool of the Responses protocol. Source of its actions: `openai.types.responses`,
`computer_action.py` and `response_computer_tool_call.py`.
"""

from collections.abc import Mapping
from typing import Any

from harnessgym.message import Message
from proxies.dialects.body import Fields, malformed, unsupported
from proxies.dialects.responses.argument_schema import checked, object_of

Json = dict[str, Any]
_COUNT = {"type": "integer"}
_POINT = {"x": _COUNT, "y": _COUNT}
_BUTTONS = ("left", "right", "wheel", "back", "forward")
_ACTIONS = {
    "click": ("button", "x", "y"),
    "double_click": ("x", "y"),
    "drag": ("path",),
    "keypress": ("keys",),
    "move": ("x", "y"),
    "screenshot": (),
    "scroll": ("x", "y", "scroll_x", "scroll_y"),
    "type": ("text",),
    "wait": (),
}
"""What each action needs. Those with a place may also have `keys`, which are held meanwhile."""
_ACTION = object_of(
    {
        "type": {"type": "string", "enum": list(_ACTIONS)},
        "button": {"type": "string", "enum": list(_BUTTONS)},
        **_POINT,
        "scroll_x": _COUNT,
        "scroll_y": _COUNT,
        "path": {"type": "array", "items": object_of(_POINT, "x", "y")},
        "keys": {"type": "array", "items": {"type": "string"}},
        "text": {"type": "string"},
    },
    "type",
)


class ComputerTool:
    """A screen, a mouse and a keyboard: `computer`, whose calls are lists of actions, or its preview, whose
    calls are one action each.
    """

    name = "computer"
    call = "computer_call"
    prefix = "cu"

    def __init__(self, *, batched: bool) -> None:
        self._batched = batched
        actions = {"type": "array", "items": _ACTION, "minItems": 1}
        self.schema: Json = object_of({"actions": actions}, "actions") if batched else _ACTION

    def describe(self, tool: Fields) -> str:
        """The description, with the size of the screen where the client tells it."""
        screen = "a screen"
        if not self._batched:
            sides = ("display_width", "display_height")
            for side in sides:
                tool.need(side)
            width, height = map(tool.count, sides)
            size = f"{width} x {height} pixels"
            screen = f"a screen of {size} ({tool.text('environment')})"
        forms = "; ".join(f"{name}: {', '.join(needs) or 'nothing'}" for name, needs in _ACTIONS.items())
        return (
            f"Use {screen}, a mouse and a keyboard; a screenshot is the result. By `type`, an action takes: "
            f"{forms}. Mouse actions may name `keys` that are held."
        )

    def item(self, arguments: Json) -> Json | None:
        """A call without safety checks, which only the provider makes."""
        actions = arguments["actions"] if self._batched else [arguments]
        if any(_action_problem(action, strict=True) for action in actions):
            return None
        return {
            **({"actions": actions} if self._batched else {"action": arguments}),
            "pending_safety_checks": [],
        }

    def arguments(self, item: Fields) -> Json:
        """The actions, or the one action, whichever the item has."""
        if not item.given("actions"):
            return self._read(item.child("action"))
        return {"actions": [self._read(action) for action in item.children("actions")]}

    def _read(self, action: Fields) -> Json:
        arguments = checked(action, _ACTION)
        if problem := _action_problem(arguments, strict=False):
            malformed(f"{action.at(problem)}: Field required")
        return arguments

    def result(self, item: Fields) -> Message:
        """A screenshot."""
        item.need("output")
        output = item.child("output")
        if output.text("type") != "computer_screenshot":
            malformed(f"{output.at('type')}: Input should be 'computer_screenshot'.")
        if output.given("file_id"):
            unsupported(
                f"{output.at('file_id')}: uploaded files are not supported by this endpoint; send the "
                "screenshot as a URL."
            )
        url = output.text("image_url")
        return Message("tool", images=(url,) if url else ())


def _action_problem(action: Mapping[str, Any], *, strict: bool) -> str:
    """The first member that an action lacks or, if `strict`, must not have."""
    needs = _ACTIONS[action["type"]]
    missing = next((name for name in needs if name not in action), "")
    may = {"type", *needs, *(("keys",) if "x" in needs or "path" in needs else ())}
    return missing or next((name for name in action if strict and name not in may), "")
