"""Tools of the Responses protocol: functions, custom tools, namespaces of both, and what the client runs.

A chat template takes one flat list of functions. A custom tool becomes a function with one string parameter,
`input`. A tool `get` in the namespace `crm` becomes `crm__get`. Answers and echoes translate both back.
`client_tools` has the tools that the protocol names by type.
"""

from typing import Any

from harnessgym.message import ToolSpec
from proxies.dialects.body import Fields, malformed, unsupported
from proxies.dialects.openai_protocol import read_choice_word
from proxies.dialects.responses.client_tools import CHOICES, client_tool

_FREEFORM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
_UNDONE = ("defer_loading", "async")
"""Fields of a tool that are not supported."""


def flat_name(namespace: str, name: str) -> str:
    """The name under which the policy sees a tool."""
    return f"{namespace}__{name}" if namespace else name


def bare_name(spec: ToolSpec) -> str:
    """The client's name for a tool, without its namespace."""
    return spec.name.removeprefix(f"{spec.namespace}__") if spec.namespace else spec.name


def read_tools(fields: Fields) -> tuple[ToolSpec, ...]:
    """The tools of a request. Raises `RequestProblem` for hosted tools and for flat names that collide."""
    out = [tool for made in fields.each("tools", _tools) for tool in made]
    seen: dict[str, ToolSpec] = {}
    for tool in out:
        other = seen.setdefault(tool.name, tool)
        if other is not tool and (other.namespace or tool.namespace or other.native or tool.native):
            malformed(f"tools: two tools would both be known as {tool.name!r}. Rename one of them.")
    return tuple(out)


def read_choice(fields: Fields, tools: tuple[ToolSpec, ...]) -> str:
    """`auto`, `none`, `required`, or the flat name of a tool."""
    word = read_choice_word(fields)
    if word is not None:
        return word
    named = fields.child("tool_choice")
    kind = named.text("type")
    if kind not in ("function", "custom", *CHOICES):
        unsupported(
            f"tool_choice.type: {kind!r} is not supported by this endpoint; name a function, a custom tool "
            "or one that the client runs."
        )
    native = kind in CHOICES
    name = CHOICES[kind] if native else flat_name(named.text("namespace", ""), named.text("name"))
    if all(tool.name != name or bool(tool.native) != native for tool in tools):
        malformed(f"tool_choice: {name!r} is not among the tools.")
    return name


def echo_tools(tools: tuple[ToolSpec, ...]) -> list[dict[str, Any]]:
    """The tools as a response repeats them."""
    out: list[dict[str, Any]] = []
    for tool in tools:
        if not tool.namespace:
            out.append(_echo(tool))
        elif out and out[-1]["type"] == "namespace" and out[-1]["name"] == tool.namespace:
            out[-1]["tools"].append(_echo(tool))
        else:
            out.append(
                {"type": "namespace", "name": tool.namespace, "description": "", "tools": [_echo(tool)]}
            )
    return out


def echo_choice(choice: str, tools: tuple[ToolSpec, ...]) -> str | dict[str, Any]:
    """The tool choice as a response repeats it."""
    tool = next((tool for tool in tools if tool.name == choice), None)
    if tool is None or choice in ("auto", "none", "required"):
        return choice
    if tool.native:
        return {"type": tool.native["type"]}
    space = {"namespace": tool.namespace} if tool.namespace else {}
    return {"type": "custom" if tool.freeform else "function", "name": bare_name(tool), **space}


def _tools(item: Fields) -> list[ToolSpec]:
    """One tool, or all tools of a namespace."""
    if item.text("type") != "namespace":
        return [_tool(item)]
    namespace = item.text("name")
    about = item.text("description", "")
    return [_tool(member, namespace, about) for member in item.children("tools")]


def _tool(fields: Fields, namespace: str = "", about: str = "") -> ToolSpec:
    """One tool. Its description begins with that of its namespace, `about`."""
    kind = fields.text("type")
    if not namespace and (native := client_tool(fields)) is not None:
        return native
    if kind not in ("function", "custom"):
        unsupported(
            f"{fields.at('type')}: {kind!r} tools are not supported by this endpoint: it samples a model "
            "and runs nothing. Only 'function', 'custom' and 'namespace' tools are, and those that the "
            "client runs: local_shell, shell, apply_patch, computer. Switch the others off in the harness."
        )
    fields.refuse(_UNDONE)
    paragraphs = [about, fields.text("description", "")]
    if kind == "custom":
        paragraphs.append(_grammar(fields.child("format")))
    parameters = fields.child("parameters").raw if kind == "function" else dict(_FREEFORM)
    name = flat_name(namespace, fields.text("name"))
    description = "\n\n".join(filter(None, paragraphs))
    return ToolSpec(name, description, parameters, namespace=namespace, freeform=kind == "custom")


def _grammar(fields: Fields) -> str:
    """A sentence for the description that states the grammar of a custom tool's input.

    Sampling is not constrained to the grammar.
    """
    kind = fields.text("type", "text")
    if kind not in ("text", "grammar"):
        malformed(f"{fields.at('type')}: {kind!r} is not one of 'text', 'grammar'.")
    if kind == "text":
        return ""
    return f"The input must match this {fields.text('syntax')} grammar:\n{fields.text('definition')}"


def _echo(tool: ToolSpec) -> dict[str, Any]:
    if tool.native:
        return tool.native
    head = {"name": bare_name(tool), "description": tool.description}
    if tool.freeform:
        return {"type": "custom", **head, "format": {"type": "text"}}
    return {"type": "function", **head, "parameters": tool.parameters, "strict": False}
