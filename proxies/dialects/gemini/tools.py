"""Gemini tools, tool choice and schemas in the terms of every other protocol."""

from typing import Any

from harnessgym.message import ToolSpec
from proxies.dialects.body import Fields, malformed, unsupported
from proxies.dialects.gemini.contents import camel, many, only_known

_DECLARATION = frozenset(
    {
        "name",
        "description",
        "parameters",
        "parametersJsonSchema",
        "response",
        "responseJsonSchema",
        "behavior",
    }
)
_MODES = {"": "auto", "MODE_UNSPECIFIED": "auto", "AUTO": "auto", "ANY": "required", "NONE": "none"}
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
"""64-bit integers, which the protocol writes as strings."""


def read_tools(fields: Fields) -> tuple[ToolSpec, ...]:
    """The functions a request declares. Tools that run at the provider are refused."""
    out: list[ToolSpec] = []
    for tool in many(fields, "tools"):
        for name, value in tool.raw.items():
            if name != "functionDeclarations" and value is not None:
                unsupported(
                    f"{tool.at(name)}: not supported by this endpoint; only functionDeclarations are."
                )
        out += [_function(declaration) for declaration in many(tool, "functionDeclarations")]
    return tuple(out)


def read_tool_choice(fields: Fields, tools: tuple[ToolSpec, ...]) -> str:
    """auto, none, required, or a tool's name."""
    config = camel(fields.child("toolConfig"))
    if config.raw.get("includeServerSideToolInvocations"):
        unsupported(f"{config.at('includeServerSideToolInvocations')}: not supported by this endpoint.")
    only_known(config, frozenset({"functionCallingConfig", "includeServerSideToolInvocations"}))
    calling = camel(config.child("functionCallingConfig"))
    only_known(calling, frozenset({"mode", "allowedFunctionNames", "streamFunctionCallArguments"}))
    mode = calling.text("mode", "")
    allowed = calling.texts("allowedFunctionNames")
    if mode == "VALIDATED":
        unsupported(f"{calling.at('mode')}: 'VALIDATED' is not supported by this endpoint; use AUTO.")
    if mode not in _MODES:
        malformed(f"{calling.at('mode')}: {mode!r} is not one of AUTO, ANY, NONE.")
    choice = _MODES[mode]
    if not allowed or choice == "none":
        return choice
    if choice != "required":
        malformed(f"{calling.at('allowedFunctionNames')}: should only be set when the mode is ANY.")
    known = {tool.name for tool in tools}
    for name in allowed:
        if name not in known:
            malformed(f"{calling.at('allowedFunctionNames')}: {name!r} is not among the tools.")
    if len(set(allowed)) > 1 and set(allowed) != known:
        unsupported(
            f"{calling.at('allowedFunctionNames')}: one function or all of them is supported by this "
            "endpoint."
        )
    return allowed[0] if len(set(allowed)) == 1 else "required"


def json_schema(schema: Any) -> Any:
    """An OpenAPI schema as the protocol writes it, as JSON schema: `STRING` is `string`, `nullable` is a
    type.

    JSON schema stays what it is, but for types in upper case, which clients put there as well.
    """
    if not isinstance(schema, dict):
        return schema
    schema = camel(Fields(schema)).raw
    out = {
        name: _keyword(name, value)
        for name, value in schema.items()
        if name not in ("nullable", "propertyOrdering")
    }
    if out.get("type") == "type_unspecified":
        del out["type"]
    if schema.get("nullable") is True and isinstance(out.get("type"), str):
        out["type"] = [out["type"], "null"]
    return out


def _function(fields: Fields) -> ToolSpec:
    only_known(fields, _DECLARATION)
    if fields.text("behavior", "") not in ("", "UNSPECIFIED", "BLOCKING"):
        unsupported(f"{fields.at('behavior')}: only BLOCKING functions are supported by this endpoint.")
    if fields.given("parameters") and fields.given("parametersJsonSchema"):
        malformed(f"{fields.at('parametersJsonSchema')}: cannot be set together with parameters.")
    parameters = json_schema(fields.child("parameters").raw) or fields.child("parametersJsonSchema").raw
    return ToolSpec(fields.text("name"), fields.text("description", ""), parameters)


def _keyword(name: str, value: Any) -> Any:
    """One keyword of a schema. Names of properties, defaults and examples are the user's own and stay as
    they are.
    """
    if name == "type" and isinstance(value, str):
        return value.lower()
    if name in _COUNTS and isinstance(value, str) and value.isdecimal():
        return int(value)
    if name in ("properties", "defs", "$defs") and isinstance(value, dict):
        return {key: json_schema(item) for key, item in value.items()}
    if name in ("anyOf", "prefixItems") and isinstance(value, list):
        return [json_schema(item) for item in value]
    return json_schema(value) if name in ("items", "additionalProperties") else value
