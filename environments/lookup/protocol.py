"""The exact protocol between a harness and the lookup task: system prompt, tools, catalog and answer file.

A harness for this task does not import this package. It repeats these strings and follows this loop:

1. Read the instruction. `SYSTEM_PROMPT` is the system prompt, the instruction the user message. Offer `TOOLS`
   (OpenAI chat form; the Anthropic form has the same names, descriptions and schemas, in the same order).
2. Ask the model. If it calls tools, append its message as it came and a tool result per call
   (`Catalog.call`); repeat.
3. If it calls none, or after `MAX_TURNS` model calls, write the text of its last message, stripped, to
   `ANSWER_FILE`.

Tool results are bare text, no newline: `find` gives the id ("Q7"), `price`, `stock` and `weight` the value
("47"). A tool, item or id that does not exist, and missing, extra or non-string arguments, give "unknown".
There is no other result.

`CATALOG_FILE` in the working directory is JSON, {"ids": {item name: id}, "attributes": {id: {"price": "47",
"stock": "31", "weight": "88"}}}; all values are strings.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SYSTEM_PROMPT = "Use the tools, then give the value."
KINDS = ("price", "stock", "weight")
"""The attributes of an item; each is also the name of the tool that reads it."""
UNKNOWN = "unknown"
MAX_TURNS = 6
CATALOG_FILE = "catalog.json"
ANSWER_FILE = "answer.txt"


def _tool(name: str, description: str, argument: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS: list[dict[str, Any]] = [
    _tool("find", "Id of an item.", "name"),
    *(_tool(kind, f"{kind.capitalize()} of an item.", "id") for kind in KINDS),
]
"""Tool definitions in OpenAI chat form."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """The data that the tools read."""

    ids: Mapping[str, str]
    """Item name to id."""
    attributes: Mapping[str, Mapping[str, str]]
    """Id to attribute to value."""

    @classmethod
    def from_json(cls, text: str) -> "Catalog":
        """Parses the text of a `CATALOG_FILE`."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """The text of a `CATALOG_FILE`."""
        return json.dumps({"ids": self.ids, "attributes": self.attributes}, indent=1) + "\n"

    def call(self, tool: str, arguments: object) -> str:
        """The result of a tool call: an id, a value, or "unknown" for a malformed call."""
        argument = "name" if tool == "find" else "id"
        if (
            not isinstance(arguments, Mapping)
            or set(arguments) != {argument}
            or not isinstance(arguments[argument], str)
        ):
            return UNKNOWN
        if tool == "find":
            return self.ids.get(arguments["name"], UNKNOWN)
        return self.attributes.get(arguments["id"], {}).get(tool, UNKNOWN)
