"""Converts Gemini contents to messages.

One content may become several messages: each function response becomes its own message. Adjacent `model`
contents become one message, because streaming clients keep every chunk as a content. Thought signatures are
dropped.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from harnessgym.message import Message, ToolCall, ToolSpec, canonical_json
from proxies.dialects.body import Fields, malformed, unsupported

RAW_ARGUMENTS = "_raw_arguments"
"""Key that carries arguments that are not a JSON object, which the protocol has no other place for."""
_DATA = ("text", "functionCall", "functionResponse", "inlineData", "fileData")
_DECORATION = frozenset({"thought", "thoughtSignature", "partMetadata", "mediaResolution"})
"""Members of a part that may accompany its data and are not shown to the policy."""
_SNAKE = re.compile(r"(?<=.)_([a-z0-9])")


def camel(fields: Fields) -> Fields:
    """The object with its keys in camelCase; the protocol also accepts snake_case."""
    return Fields(
        {_SNAKE.sub(lambda found: found[1].upper(), name): value for name, value in fields.raw.items()},
        fields.path,
    )


def many(fields: Fields, name: str) -> list[Fields]:
    """An array of objects; the protocol also accepts a single object."""
    if isinstance(fields.raw.get(name), dict):
        return [camel(fields.child(name))]
    return [camel(item) for item in fields.children(name)]


def only_known(fields: Fields, known: frozenset[str]) -> None:
    """Refuse unknown members instead of ignoring them."""
    for name, value in fields.raw.items():
        if name not in known and value is not None:
            where = f" at '{fields.path}'" if fields.path else ""
            malformed(f'Invalid JSON payload received. Unknown name "{name}"{where}: Cannot find field.')


def read_system(fields: Fields) -> list[Message]:
    """The system message of a request, if it has one."""
    content = camel(fields.child("systemInstruction"))
    texts = [_system_text(part) for part in many(content, "parts")]
    return [Message("system", "\n".join(texts))] if any(texts) else []


def read_contents(contents: list[Fields]) -> list[Message]:
    """The conversation of a request."""
    reader = _Reader()
    for content in contents:
        reader.add(content)
    return reader.messages


@dataclass
class _Reader:
    """Reads contents one by one and pairs function calls with their responses, with or without ids."""

    messages: list[Message] = field(default_factory=list)
    _open: list[ToolCall] = field(default_factory=list)
    """Calls that have no response yet."""
    _calls: int = 0

    def add(self, content: Fields) -> None:
        """Read the next content."""
        only_known(content, frozenset({"role", "parts"}))
        role = content.text("role", "user") or "user"
        if role not in ("user", "model", "function", "tool"):
            malformed(f"{content.at('role')}: Please use a valid role: user, model.")
        parts = many(content, "parts")
        if role == "model":
            self._add_model(parts)
        elif not parts:
            malformed(f"{content.at('parts')}: contents.parts must not be empty.")
        else:
            self._add_user(parts)

    def _add_model(self, parts: list[Fields]) -> None:
        # A streaming client sends each chunk back as its own content: continue the message before it.
        last = (
            self.messages.pop()
            if self.messages and self.messages[-1].role == "assistant"
            else Message("assistant")
        )
        content = last.content
        reasoning = last.reasoning
        calls = list(last.tool_calls)
        for part in parts:
            kind = _kind(part)
            if kind == "functionCall":
                calls.append(self._call(camel(part.child(kind))))
            elif kind != "text":
                unsupported(f"{part.at(kind)}: not supported in a model's content by this endpoint.")
            elif part.flag("thought"):
                reasoning += part.text("text", "")
            else:
                content += part.text("text", "")
        self._open.extend(calls[len(last.tool_calls) :])
        self.messages.append(replace(last, content=content, reasoning=reasoning, tool_calls=tuple(calls)))

    def _add_user(self, parts: list[Fields]) -> None:
        texts: list[str] = []
        images: list[str] = []
        for part in parts:
            kind = _kind(part)
            if kind == "functionResponse":
                self._say(texts, images)
                self.messages.append(self._result(camel(part.child(kind))))
            elif kind == "text":
                texts.append(part.text("text", ""))
            elif kind == "functionCall":
                malformed(f"{part.at(kind)}: function calls belong into contents of role 'model'.")
            else:
                images.append(_image(part, kind))
        self._say(texts, images)

    def _say(self, texts: list[str], images: list[str]) -> None:
        """Add a user message with the texts and images since the last function response."""
        if texts or images:
            self.messages.append(Message("user", "\n".join(texts), images=tuple(images)))
        texts.clear()
        images.clear()

    def _call(self, fields: Fields) -> ToolCall:
        only_known(fields, frozenset({"id", "name", "args"}))
        call_id = fields.text("id", "") or f"call_{self._calls}"
        self._calls += 1
        args = fields.child("args").raw
        # Arguments that did not parse went out under this key: restore the text that was sampled.
        raw = args.get(RAW_ARGUMENTS)
        arguments = raw if len(args) == 1 and isinstance(raw, str) else json.dumps(args, ensure_ascii=False)
        return ToolCall(call_id, fields.text("name"), arguments)

    def _result(self, fields: Fields) -> Message:
        only_known(fields, frozenset({"id", "name", "response", "parts", "willContinue", "scheduling"}))
        if fields.flag("willContinue"):
            unsupported(f"{fields.at('willContinue')}: not supported by this endpoint.")
        name = fields.text("name", "")
        images = tuple(_image(part, _kind(part)) for part in many(fields, "parts"))
        call_id = self._answered(fields.text("id", ""), name)
        return Message(
            "tool",
            result_text(fields.child("response").raw),
            tool_call_id=call_id,
            name=name or None,
            images=images,
        )

    def _answered(self, call_id: str, name: str) -> str:
        """The id of the call that a response answers.

        It is the open call with the same id, else the first open call with the same name.
        """
        same = [call for call in self._open if call.id == call_id] or [
            call for call in self._open if call.name == name
        ]
        if not same:
            return call_id or f"call_{name}"
        self._open.remove(same[0])
        return same[0].id


def result_text(response: dict[str, Any]) -> str:
    """A function's response as the text that the policy reads.

    Clients wrap plain text as `{"output": text}` or `{"result": text}`; the policy reads just the text.
    Anything else becomes canonical JSON: sorted keys, no spare whitespace, whole numbers without a fraction.
    The text is therefore the same however a client formats its JSON.
    """
    if len(response) == 1:
        ((name, text),) = response.items()
        if name in ("output", "result") and isinstance(text, str):
            return text
    return canonical_json(_whole(response))


def _whole(value: Any) -> Any:
    """The value with whole floats as integers, because JavaScript writes 1.0 as 1."""
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _kind(part: Fields) -> str:
    """The name of a part's one data field. Raises `RequestProblem` unless there is one that is supported."""
    held = list(_held(part))
    # Some clients send a thought's signature as a part of its own, without any text.
    if not held and part.given("thoughtSignature"):
        return "text"
    if len(held) != 1:
        malformed(f"{part.path}: the part must have exactly one field set: {', '.join(_DATA)}.")
    if held[0] not in _DATA:
        unsupported(f"{part.at(held[0])}: not supported by this endpoint.")
    return held[0]


def _held(part: Fields) -> Iterator[str]:
    return (name for name, value in part.raw.items() if value is not None and name not in _DECORATION)


def _system_text(part: Fields) -> str:
    kind = _kind(part)
    if kind != "text":
        unsupported(f"{part.at(kind)}: system instructions are text only on this endpoint.")
    return part.text("text", "")


def _image(part: Fields, kind: str) -> str:
    """The URL of an image: `data:` for inline data, `https:` for a file."""
    if kind not in ("inlineData", "fileData"):
        unsupported(f"{part.at(kind)}: not supported here by this endpoint.")
    data = camel(part.child(kind))
    mime = data.text("mimeType", "" if kind == "fileData" else None)
    if not mime.startswith("image/") and (mime or kind == "inlineData"):
        unsupported(
            f"{data.at('mimeType')}: {mime!r} is not supported by this endpoint; only text and images are."
        )
    if kind == "inlineData":
        standard = data.text("data").translate(_URL_SAFE).rstrip("=")
        return f"data:{mime};base64,{standard}{'=' * (-len(standard) % 4)}"
    url = data.text("fileUri")
    if not url.startswith("https://"):
        unsupported(
            f"{data.at('fileUri')}: only https URLs are supported by this endpoint; send the image as "
            "inlineData."
        )
    return url


_URL_SAFE = str.maketrans("-_", "+/")
"""Clients send base64 in the standard or the URL-safe alphabet; data URLs need the standard one."""


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
_MODES = {
    "": "auto",
    "MODE_UNSPECIFIED": "auto",
    "AUTO": "auto",
    "VALIDATED": "auto",
    "ANY": "required",
    "NONE": "none",
}
"""VALIDATED is AUTO with a promise that calls match their schemas, which sampling cannot make. Whether they
do is for the client to see, as with AUTO."""
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
"""Keywords with 64-bit integers, which the protocol writes as strings."""


def read_tools(fields: Fields) -> tuple[ToolSpec, ...]:
    """The functions that a request declares. Raises `RequestProblem` for tools that run at the provider."""
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
    """`auto`, `none`, `required` or a tool's name."""
    config = camel(fields.child("toolConfig"))
    if config.raw.get("includeServerSideToolInvocations"):
        unsupported(f"{config.at('includeServerSideToolInvocations')}: not supported by this endpoint.")
    only_known(config, frozenset({"functionCallingConfig", "includeServerSideToolInvocations"}))
    calling = camel(config.child("functionCallingConfig"))
    only_known(calling, frozenset({"mode", "allowedFunctionNames", "streamFunctionCallArguments"}))
    mode = calling.text("mode", "")
    allowed = calling.texts("allowedFunctionNames")
    if mode not in _MODES:
        malformed(f"{calling.at('mode')}: {mode!r} is not one of AUTO, VALIDATED, ANY, NONE.")
    choice = _MODES[mode]
    if not allowed or choice == "none":
        return choice
    if choice != "required":
        malformed(f"{calling.at('allowedFunctionNames')}: should only be set when the mode is ANY.")
    known = {tool.name for tool in tools}
    for name in allowed:
        if name not in known:
            malformed(f"{calling.at('allowedFunctionNames')}: {name!r} is not among the tools.")
    # One tool or all tools can be expressed as a tool choice; a true subset cannot.
    if len(set(allowed)) > 1 and set(allowed) != known:
        unsupported(
            f"{calling.at('allowedFunctionNames')}: one function or all of them is supported by this "
            "endpoint."
        )
    return allowed[0] if len(set(allowed)) == 1 else "required"


def json_schema(schema: Any) -> Any:
    """Convert the protocol's OpenAPI schema to JSON Schema: `STRING` to `string`, `nullable` to a type.

    A JSON Schema comes back unchanged, except that upper-case types, which clients use there too, become
    lower case.
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
    """Convert one keyword of a schema.

    Property names, defaults and examples are the user's own data and stay unchanged.
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
