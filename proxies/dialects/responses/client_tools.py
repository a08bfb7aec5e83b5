"""Tools of the Responses protocol that the client runs: local_shell, shell, apply_patch, computer.

A request names them by type only, because the provider's models know them. A policy does not, so it is given
each as a function with a description and the arguments that the item of a call takes. A call whose arguments
fit becomes such an item. One whose arguments do not fit becomes a `function_call` with the tool's name and
the arguments as they were sampled: nothing is left out or made up, and the client says that it cannot run it.

Source of types, fields and events: the types of OpenAI's Python SDK (`openai.types.responses`: `tool.py`,
`response_input_item.py`, `response_output_item.py`, and the files of each tool).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from harnessgym.message import Message, ToolCall, ToolSpec
from proxies.dialects.body import Fields, malformed, unsupported
from proxies.dialects.responses.argument_schema import checked, misfit, object_of
from proxies.dialects.responses.computer_tool import ComputerTool

Json = dict[str, Any]
_STRING = {"type": "string"}
_COUNT = {"type": "integer"}
_STRINGS = {"type": "array", "items": _STRING}
_BLANKS = {"d": "diff", "m": "max_output_length", "n": "env", "t": "timeout_ms", "u": "user",
           "w": "working_directory"}  # fmt: skip
"""Letters in an item's id for arguments that the policy wrote as null. Clients add and drop nulls."""
_EMPTY_ENV = "e"
"""The letter for `env` written as an empty object, which the protocol requires in every item."""


class ClientTool(Protocol):
    """One of the tools."""

    name: str
    """The policy's name for it."""
    call: str
    """The type of a call's item; that of its result ends in `_output`."""
    prefix: str
    """How an item's id begins."""
    schema: Json
    """JSON schema of the arguments."""

    def describe(self, tool: Fields) -> str:
        """The description of a declared tool. Raises `RequestProblem` for one that the provider runs."""
        ...

    def item(self, arguments: Json) -> Json | None:
        """The members of a call's item; None if the arguments do not fit."""
        ...

    def arguments(self, item: Fields) -> Json:
        """The arguments in a call's item, without nulls. Raises `RequestProblem`."""
        ...

    def result(self, item: Fields) -> Message:
        """A result's item as what the policy reads, without the call's id. Raises `RequestProblem`."""
        ...


class LocalShellTool:
    """One command of a shell on the client's machine."""

    name = "local_shell"
    call = "local_shell_call"
    prefix = "lsh"
    schema = object_of(
        {
            "command": {**_STRINGS, "minItems": 1},
            "env": {"type": "object", "additionalProperties": _STRING},
            "timeout_ms": _COUNT,
            "user": _STRING,
            "working_directory": _STRING,
        },
        "command",
    )

    def describe(self, tool: Fields) -> str:
        """The description."""
        del tool
        return "Run a command. `command` is the program and its arguments, one string each."

    def item(self, arguments: Json) -> Json:
        """An `exec` action."""
        return {"action": {"type": "exec", "env": {}, **arguments}}

    def arguments(self, item: Fields) -> Json:
        """Those of the action."""
        action = item.child("action")
        if action.text("type") != "exec":
            malformed(f"{action.at('type')}: Input should be 'exec'.")
        arguments = checked(action, self.schema)
        return {name: value for name, value in arguments.items() if name != "env" or value}

    def result(self, item: Fields) -> Message:
        """The client's text as it is."""
        return Message("tool", item.text("output"))


class ShellTool:
    """Commands of a shell on the client's machine."""

    name = "shell"
    call = "shell_call"
    prefix = "sh"
    schema = object_of(
        {"commands": {**_STRINGS, "minItems": 1}, "timeout_ms": _COUNT, "max_output_length": _COUNT},
        "commands",
    )

    def describe(self, tool: Fields) -> str:
        """The description, with the skills that lie on the client's machine."""
        place = tool.child("environment")
        if place.text("type", "local") != "local":
            unsupported(
                f"{place.at('type')}: {place.raw['type']!r} is not supported by this endpoint: the "
                "provider runs it. 'local' is, which the client runs."
            )
        skills = [
            f"\n- {skill.text('name')} ({skill.text('path')}): {skill.text('description')}"
            for skill in place.children("skills")
        ]
        about = "Run shell commands, each of `commands` by itself, in order."
        return f"{about}\nSkills, each a folder with instructions:{''.join(skills)}" if skills else about

    def item(self, arguments: Json) -> Json:
        """An action with all commands."""
        return {"action": arguments}

    def arguments(self, item: Fields) -> Json:
        """Those of the action."""
        return checked(item.child("action"), self.schema)

    def result(self, item: Fields) -> Message:
        """What every command wrote, with how it ended unless it ended well."""
        item.need("output")
        return Message("tool", "\n\n".join(_ran(part) for part in item.children("output")))


class ApplyPatchTool:
    """One change of one file."""

    name = "apply_patch"
    call = "apply_patch_call"
    prefix = "apc"
    schema = object_of(
        {
            "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            "path": _STRING,
            "diff": _STRING,
        },
        "type",
        "path",
    )

    def describe(self, tool: Fields) -> str:
        """The description."""
        del tool
        return (
            "Create, update or delete one file. `diff` is in the V4A format: lines that stay begin with a "
            "space, removed ones with '-', added ones with '+', and '@@' begins each place in the file. To "
            "create a file, every line begins with '+'. To delete one, leave `diff` out."
        )

    def item(self, arguments: Json) -> Json | None:
        """An operation; None for a change without a diff, and a deletion with one."""
        if ("diff" in arguments) == (arguments["type"] == "delete_file"):
            return None
        return {"operation": arguments}

    def arguments(self, item: Fields) -> Json:
        """Those of the operation."""
        operation = item.child("operation")
        arguments = checked(operation, self.schema)
        if "diff" not in arguments and arguments["type"] != "delete_file":
            malformed(f"{operation.at('diff')}: Field required")
        return arguments

    def result(self, item: Fields) -> Message:
        """The client's text; an error if it says that it failed."""
        status = item.text("status")
        if status not in ("completed", "failed"):
            malformed(f"{item.at('status')}: {status!r} is not one of 'completed', 'failed'.")
        return Message("tool", item.text("output", ""), is_error=status == "failed")


_TOOLS: dict[str, ClientTool] = {
    "local_shell": LocalShellTool(),
    "shell": ShellTool(),
    "apply_patch": ApplyPatchTool(),
    "computer": ComputerTool(batched=True),
    "computer_use_preview": ComputerTool(batched=False),
}
_BY_CALL = {tool.call: tool for tool in _TOOLS.values()}
CALLS = frozenset(_BY_CALL)
"""Types of items that are calls of these tools."""
RESULTS = frozenset(f"{call}_output" for call in CALLS)
"""Types of items that are results of such calls."""
CHOICES = {"shell": "shell", "apply_patch": "apply_patch", "local_shell": "local_shell",
           **dict.fromkeys(("computer", "computer_use", "computer_use_preview"), "computer")}  # fmt: skip
"""What `tool_choice.type` names one of these tools, and the policy's name for it."""


def client_tool(fields: Fields) -> ToolSpec | None:
    """The function that stands for a declared tool; None if the client does not run tools of its type."""
    tool = _TOOLS.get(fields.text("type"))
    if tool is None:
        return None
    callers = fields.texts("allowed_callers")
    if callers and "direct" not in callers:
        unsupported(f"{fields.at('allowed_callers')}: only 'direct' callers are supported by this endpoint.")
    return ToolSpec(tool.name, tool.describe(fields), tool.schema, native=fields.raw)


def write_call(spec: ToolSpec, call: ToolCall) -> tuple[str, str, Json] | None:
    """How the id of a call's item begins and ends, and the item's type and members.

    None if the call's arguments do not fit the tool.
    """
    tool = _TOOLS[spec.native["type"]]
    if not isinstance(call.parsed, dict):
        return None
    blanks = {name for name, value in call.parsed.items() if value is None} & set(_BLANKS.values())
    arguments = {name: value for name, value in call.parsed.items() if name not in blanks}
    if misfit(arguments, tool.schema, ""):
        return None
    members = tool.item(arguments)
    if members is None:
        return None
    ending = "".join(letter for letter, name in _BLANKS.items() if name in blanks)
    if arguments.get("env") == {}:
        ending += _EMPTY_ENV
    return tool.prefix, ending, {"type": tool.call, "status": "completed", "call_id": call.id, **members}


def read_call(item: Fields, kind: str, ending: str) -> ToolCall:
    """The call in an item whose id ends in `ending`. Raises `RequestProblem`."""
    tool = _BY_CALL[kind]
    arguments = tool.arguments(item)
    blanks: Json = {name: None for letter, name in _BLANKS.items() if letter in ending}
    blanks |= {"env": {}} if _EMPTY_ENV in ending else {}
    arguments = {**blanks, **arguments}
    return ToolCall(item.text("call_id"), tool.name, json.dumps(arguments, ensure_ascii=False))


def read_result(item: Fields, kind: str) -> Message:
    """The result in an item, without the call's id. Raises `RequestProblem`."""
    return _BY_CALL[kind.removesuffix("_output")].result(item)


def unwritten(item: Json) -> Json:
    """A call's item as a stream announces it: without its arguments, where its type lets them be empty."""
    empty: Mapping[str, Json] = {
        "local_shell_call": {"action": {"type": "exec", "command": [], "env": {}}},
        "shell_call": {"action": {"commands": []}},
    }
    out = {**item, "status": "in_progress", **empty.get(item["type"], {})}
    if item["type"] == "apply_patch_call" and "diff" in item["operation"]:
        out["operation"] = {**item["operation"], "diff": ""}
    return out


def command_events(item: Json) -> Iterator[tuple[str, Json]]:
    """Yields names and members of the events that give a shell call's commands one by one."""
    for index, command in enumerate(item["action"]["commands"] if item["type"] == "shell_call" else ()):
        yield "shell_call_command.added", {"command_index": index, "command": ""}
        yield "shell_call_command.delta", {"command_index": index, "delta": command}
        yield "shell_call_command.done", {"command_index": index, "command": command}


def _ran(part: Fields) -> str:
    """What one command wrote and how it ended."""
    part.need("outcome")
    outcome = part.child("outcome")
    stdout, stderr = part.text("stdout"), part.text("stderr")
    lines = [stdout.rstrip("\n")] if stdout else []
    lines += [f"stderr:\n{stderr.rstrip(chr(10))}"] if stderr else []
    match outcome.text("type"):
        case "exit":
            code = outcome.need("exit_code")
            if isinstance(code, bool) or not isinstance(code, int):
                malformed(f"{outcome.at('exit_code')}: expected an integer.")
            lines += [f"exit code: {code}"] if code else []
        case "timeout":
            lines.append("timed out")
        case kind:
            malformed(f"{outcome.at('type')}: {kind!r} is not one of 'exit', 'timeout'.")
    return "\n".join(lines)
