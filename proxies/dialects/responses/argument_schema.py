"""The part of JSON Schema that describes the arguments of client tools, and what does not fit it.

The same schema is shown to the policy, decides whether its call fits the tool, and checks the items that
clients send.
"""

from typing import Any

from proxies.dialects.body import Fields, malformed

Json = dict[str, Any]
_TYPES: Json = {"object": dict, "array": list, "string": str, "integer": int}


def object_of(properties: Json, *required: str) -> Json:
    """The schema of an object with these members and no others."""
    return {"type": "object", "properties": properties, "required": list(required)}


def misfit(value: Any, schema: Json, at: str, *, strict: bool = True) -> str:
    """What does not fit, with its path below `at`; empty if all does.

    If `strict`, members that the schema does not name do not fit.
    """
    kind = schema["type"]
    if isinstance(value, bool) or not isinstance(value, _TYPES[kind]):
        article = "a" if kind == "string" else "an"
        return f"{at}: expected {article} {kind}, got {type(value).__name__}."
    if "enum" in schema and value not in schema["enum"]:
        return f"{at}: {value!r} is not one of {', '.join(map(repr, schema['enum']))}."
    if kind == "object":
        return _object_misfit(value, schema, at, strict=strict)
    if kind == "array":
        if len(value) < schema.get("minItems", 0):
            return f"{at}: expected at least {schema['minItems']} of them."
        problems = (
            misfit(item, schema["items"], f"{at}[{index}]", strict=strict) for index, item in enumerate(value)
        )
        return next(filter(None, problems), "")
    return ""


def checked(fields: Fields, schema: Json) -> Json:
    """The arguments in an object of a client's item, without nulls and members that `schema` does not name.

    Raises `RequestProblem`.
    """
    arguments: Json = _without_nulls(
        {name: value for name, value in fields.raw.items() if name in schema["properties"]}
    )
    if problem := misfit(arguments, schema, fields.path, strict=False):
        malformed(problem)
    return arguments


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _object_misfit(value: Json, schema: Json, at: str, *, strict: bool) -> str:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{at}.{name}: Field required"
    for name, item in value.items():
        known = properties.get(name, schema.get("additionalProperties"))
        if known is None and strict:
            return f"{at}.{name}: unknown field."
        if known is not None and (problem := misfit(item, known, f"{at}.{name}", strict=strict)):
            return problem
    return ""
