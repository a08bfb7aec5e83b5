"""Reads arguments of grammars that write strings without quotes: their text alone does not tell `1` from "1".

The tool's schema decides. Where it says nothing, a text is a value only if a template would write that value
so, and a string otherwise; then a call that is parsed and rendered again gives the same text.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harnessgym.message import ToolSpec
from proxies import strict_json

_DEPTH = 8
"""Schemas are followed this far: references may be circular."""
_KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""How templates that turn values into text by Jinja write them."""


class ArgumentReader:
    """Reads the arguments of one turn's calls. `words` are further texts for JSON values."""

    def __init__(self, offered: Sequence[ToolSpec], words: Mapping[str, str] | None = None) -> None:
        self._schemas = {tool.name: tool.parameters for tool in offered}
        self._words = words or {}
        self._written = {value: text for text, value in self._words.items()}

    def object(self, tool: str, arguments: Sequence[tuple[str, str]]) -> str | None:
        """The JSON text of a call's arguments; None if a name appears twice."""
        if len({name for name, _ in arguments}) < len(arguments):
            return None
        members = [
            f"{_quoted(name)}: {self._value(self._kinds(tool, name), text)}" for name, text in arguments
        ]
        return "{" + ", ".join(members) + "}"

    def _value(self, kinds: set[str], text: str) -> str:
        if kinds == {"string"}:
            return _quoted(text)
        bare = text.strip()
        bare = self._words.get(bare, bare)
        try:
            value = strict_json.loads(bare)
        except ValueError:
            return _quoted(text)
        if isinstance(value, str):
            return _quoted(text)
        if not kinds:
            return bare if self._canonical(value) == text else _quoted(text)
        # A value of a wrong type is the harness's to refuse, as it would be in a grammar of JSON.
        return bare if "string" not in kinds or _kinds_of(value) & kinds else _quoted(text)

    def _canonical(self, value: Any) -> str:
        text = json.dumps(value, ensure_ascii=False)
        return self._written.get(text, text)

    def _kinds(self, tool: str, name: str) -> set[str]:
        """The JSON types that an argument may have; empty if unknown."""
        schema = self._schemas.get(tool, {})
        properties = schema.get("properties")
        member = properties.get(name) if isinstance(properties, dict) else None
        if member is None:
            member = schema.get("additionalProperties")
        return _kinds_allowed(member, schema, _DEPTH)


def _kinds_allowed(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, dict) or not depth:
        return set()
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _kinds_allowed(_referred(root, reference), root, depth - 1)
    named = schema.get("type")
    kinds = {named} if isinstance(named, str) else set(named) if isinstance(named, list) else set()
    for value in [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]:
        kinds |= _kinds_of(value) if not named else set()
    for option in [*_list(schema.get("anyOf")), *_list(schema.get("oneOf")), *_list(schema.get("allOf"))]:
        option_kinds = _kinds_allowed(option, root, depth - 1)
        if not option_kinds:
            return set()
        kinds |= option_kinds
    if kinds and schema.get("nullable") is True:
        kinds.add("null")
    return kinds


def _referred(root: Mapping[str, Any], reference: str) -> Any:
    schema: Any = root
    for part in reference.removeprefix("#/").split("/"):
        schema = schema.get(part) if isinstance(schema, dict) else None
    return schema


def _kinds_of(value: Any) -> set[str]:
    kind = _KINDS.get(type(value), "null")
    return {"integer", "number"} if kind == "integer" else {kind}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
