"""Tools of the Responses protocol that the client runs: functions for the policy, items of their own types for
the client, and the same call again when an item comes back.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from harnessgym.message import Message, ToolCall
from proxies.dialect import Answer, Delta, Finished, RequestProblem, Stamp, TokenUsage, ToolCallDelta
from tests.proxies.conftest import MakeWorld
from tests.proxies.responses_wire import FUNCTION, RESPONSES, USER, messages, parse

EVENTS = TypeAdapter[Any](ResponseStreamEvent)
SCREEN = {"display_width": 800, "display_height": 600, "environment": "browser"}
LOCAL = {"type": "local_shell"}
SHELL = {"type": "shell", "environment": {"type": "local"}}
PATCH = {"type": "apply_patch"}
COMPUTER = {"type": "computer"}
PREVIEW = {"type": "computer_use_preview", **SCREEN}
ALL = [LOCAL, SHELL, PATCH, COMPUTER]
CLICK = {"type": "click", "button": "left", "x": 3, "y": 4}
MOVES = [CLICK, {"type": "drag", "path": [{"x": 1, "y": 2}]}, {"type": "scroll", "x": 1, "y": 2, "scroll_x": 0,
         "scroll_y": -9}, {"type": "keypress", "keys": ["CTRL", "A"]}, {"type": "type", "text": "ü"}, {"type": "wait"},
         {"type": "move", "x": 1, "y": 2, "keys": ["ALT"]}, {"type": "double_click", "x": 1, "y": 2},
         {"type": "screenshot"}]  # fmt: skip
FITS: list[tuple[str, dict[str, Any]]] = [
    ("local_shell", {"command": ["ls", "-l"]}),
    ("local_shell", {"command": ["ls"], "env": {"A": "b"}, "working_directory": "/", "user": "u", "timeout_ms": 5}),
    ("local_shell", {"command": ["ls"], "env": {}, "timeout_ms": None}),
    ("local_shell", {"command": ["ls"], "env": None, "user": None, "working_directory": None}),
    ("shell", {"commands": ["ls", "echo ü"]}),
    ("shell", {"commands": ["ls"], "timeout_ms": 5, "max_output_length": None}),
    ("apply_patch", {"type": "create_file", "path": "a", "diff": "+x\n"}),
    ("apply_patch", {"type": "update_file", "path": "a", "diff": "@@\n-x\n+y\n"}),
    ("apply_patch", {"type": "delete_file", "path": "a"}),
    ("apply_patch", {"type": "delete_file", "path": "a", "diff": None}),
    ("computer", {"actions": MOVES}),
]  # fmt: skip
MISFITS: list[tuple[str, str]] = [
    ("local_shell", '{"command": "ls"}'),
    ("local_shell", '{"command": []}'),
    ("local_shell", '{"command": ["ls"], "env": {"A": 1}}'),
    ("local_shell", '{"command": ["ls"], "cwd": "/"}'),
    ("shell", "{}"),
    ("shell", '{"commands":  []}'),
    ("shell", '{"commands": "ls"}'),
    ("shell", '{"commands": null}'),
    ("shell", '{"commands": ["ls"], "timeout_ms": "5"}'),
    ("shell", '{"commands": ["ls"], "timeout_ms": true}'),
    ("shell", "ls -l"),
    ("shell", "[1]"),
    ("apply_patch", '{"type": "update_file", "path": "a"}'),
    ("apply_patch", '{"type": "delete_file", "path": "a", "diff": ""}'),
    ("apply_patch", '{"type": "rename_file", "path": "a"}'),
    ("apply_patch", '{"operation": {"type": "delete_file", "path": "a"}}'),
    ("computer", '{"actions": []}'),
    ("computer", '{"type": "wait"}'),
    ("computer", '{"actions": [{"type": "click", "x": 1, "y": 2}]}'),
    ("computer", '{"actions": [{"type": "wait", "text": "x"}]}'),
    ("computer", '{"actions": [{"type": "drag", "path": [{"x": 1}]}]}'),
]


def answered(name: str, arguments: str) -> Message:
    return Message("assistant", tool_calls=(ToolCall("call_a1_0", name, arguments),))


def render(message: Message, tools: list[dict[str, Any]]) -> dict[str, Any]:
    answer = Answer("a1", "m", message, "tool_calls", TokenUsage(4, 2), 5)
    body: dict[str, Any] = json.loads(RESPONSES.render([answer], parse(tools=tools)))
    return body


def stream(message: Message, tools: list[dict[str, Any]]) -> list[tuple[bool, dict[str, Any]]]:
    async def source() -> AsyncIterator[Delta]:
        for index, call in enumerate(message.tool_calls):
            yield ToolCallDelta(index, call)
        yield Finished("tool_calls", TokenUsage(4, 2))

    async def collect() -> list[tuple[bool, dict[str, Any]]]:
        events = RESPONSES.stream(source(), Stamp("a1", "m", 5), parse(tools=tools), 4)
        return [
            (event.act, json.loads(event.data.decode().partition("\ndata: ")[2])) async for event in events
        ]

    return asyncio.run(collect())


def test_the_policy_gets_a_function_for_each() -> None:
    specs = parse(tools=[FUNCTION, *ALL]).tools[1:]
    assert [spec.name for spec in specs] == ["local_shell", "shell", "apply_patch", "computer"]
    assert all(spec.description for spec in specs)
    for spec in specs:
        assert set(spec.parameters["required"]) <= set(spec.parameters["properties"])
    (preview,) = parse(tools=[PREVIEW]).tools
    assert preview.name == "computer"
    assert "800 x 600 pixels (browser)" in preview.description
    assert preview.parameters["required"] == ["type"]


def test_skills_on_the_clients_machine_are_told() -> None:
    skill = {"name": "csv", "path": "/skills/csv", "description": "Reads tables."}
    (spec,) = parse(tools=[{"type": "shell", "environment": {"type": "local", "skills": [skill]}}]).tools
    assert spec.description.endswith("\n- csv (/skills/csv): Reads tables.")


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([{"type": "shell", "environment": {"type": "container_auto"}}], "'container_auto' is not supported"),
        (
            [{"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}}],
            "tools[0].environment.type: 'container_reference' is not supported",
        ),
        ([{**PATCH, "allowed_callers": ["programmatic"]}], "tools[0].allowed_callers: only 'direct' callers"),
        ([SHELL, SHELL], "two tools would both be known as 'shell'"),
        ([SHELL, {**FUNCTION, "name": "shell"}], "two tools would both be known as 'shell'"),
        ([COMPUTER, PREVIEW], "two tools would both be known as 'computer'"),
        ([{"type": "computer_use_preview"}], "tools[0].display_width: Field required"),
        ([{"type": "computer_use_preview", **SCREEN, "display_width": "wide"}], "expected an integer"),
        ([{"type": "namespace", "name": "n", "tools": [SHELL]}], "'shell' tools are not supported"),
        ([{"type": "shell", "environment": "local"}], "tools[0].environment: expected an object"),
    ],
)
def test_a_tool_that_cannot_be_offered_is_refused(tools: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(RequestProblem) as caught:
        parse(tools=tools)
    assert message in caught.value.problem.message


@pytest.mark.parametrize(("name", "arguments"), FITS)
def test_a_call_that_fits_is_an_item_and_comes_back(name: str, arguments: dict[str, Any]) -> None:
    message = answered(name, json.dumps(arguments, indent=1))
    whole = render(message, ALL)
    Response.model_validate(whole, strict=True)
    (item,) = whole["output"]
    assert (item["type"], item["call_id"], item["status"]) == (f"{name}_call", "call_a1_0", "completed")
    # Clients send the item as it was, or as the SDK's types write it, with nulls and defaults.
    for sent in (item, Response.model_validate(whole).output[0].model_dump()):
        (back,) = messages(sent)
        assert back.digest == message.digest
        assert back.tool_calls[0].id == "call_a1_0"
    events = stream(message, ALL)
    for _, event in events:
        assert EVENTS.validate_python(event).type == event["type"]
    assert events[-1][1]["response"] == whole
    assert all(act for act, _ in events[2:])
    done = [event["item"] for _, event in events if event["type"] == "response.output_item.done"]
    assert done == [item]


def test_the_items_of_calls() -> None:
    def item(name: str, arguments: dict[str, Any], tools: list[dict[str, Any]] = ALL) -> dict[str, Any]:
        (written,) = render(answered(name, json.dumps(arguments)), tools)["output"]
        return {key: value for key, value in written.items() if key not in ("status", "call_id")}

    assert item("local_shell", {"command": ["ls"]}) == {
        "id": "lsh_a1_0", "type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}},
    }  # fmt: skip
    assert item("shell", {"commands": ["ls"], "timeout_ms": 5}) == {
        "id": "sh_a1_0", "type": "shell_call", "action": {"commands": ["ls"], "timeout_ms": 5},
    }  # fmt: skip
    assert item("apply_patch", {"type": "delete_file", "path": "a"}) == {
        "id": "apc_a1_0", "type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"},
    }  # fmt: skip
    assert item("computer", {"actions": [CLICK]}) == {
        "id": "cu_a1_0", "type": "computer_call", "actions": [CLICK], "pending_safety_checks": [],
    }  # fmt: skip
    assert item("computer", CLICK, [PREVIEW]) == {
        "id": "cu_a1_0", "type": "computer_call", "action": CLICK, "pending_safety_checks": [],
    }  # fmt: skip


def test_a_call_of_the_preview_comes_back() -> None:
    message = answered("computer", json.dumps(CLICK))
    whole = render(message, [PREVIEW])
    Response.model_validate(whole, strict=True)
    assert messages(whole["output"][0])[0].digest == message.digest


@pytest.mark.parametrize(("name", "arguments"), MISFITS)
def test_a_call_that_does_not_fit_is_a_function_call_as_it_was_sampled(name: str, arguments: str) -> None:
    message = answered(name, arguments)
    whole = render(message, ALL)
    Response.model_validate(whole, strict=True)
    (item,) = whole["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", name, arguments)
    assert messages(item)[0].digest == message.digest
    assert stream(message, ALL)[-1][1]["response"] == whole


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "type"]), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
NAMES = (
    "command",
    "commands",
    "env",
    "timeout_ms",
    "user",
    "max_output_length",
    "type",
    "path",
    "diff",
    "actions",
)


@given(
    name=st.sampled_from(["local_shell", "shell", "apply_patch", "computer"]),
    base=st.sampled_from([arguments for _, arguments in FITS]),
    changes=st.dictionaries(st.sampled_from(NAMES), ANY, max_size=3),
)
def test_whatever_the_policy_wrote_comes_back(
    name: str, base: dict[str, Any], changes: dict[str, Any]
) -> None:
    message = answered(name, json.dumps({**base, **changes}))
    whole = render(message, ALL)
    assert messages(whole["output"][0])[0].digest == message.digest
    Response.model_validate(whole, strict=True)


def test_a_stream_gives_a_shells_commands_one_by_one_and_only_when_they_may_be_run() -> None:
    events = stream(answered("shell", '{"commands": ["ls", "pwd"]}'), ALL)
    assert [(act, event["type"].removeprefix("response.")) for act, event in events] == [
        (False, "created"),
        (False, "in_progress"),
        (True, "output_item.added"),
        *((True, f"shell_call_command.{step}") for _ in range(2) for step in ("added", "delta", "done")),
        (True, "output_item.done"),
        (True, "completed"),
    ]
    assert events[2][1]["item"]["action"] == {"commands": []}
    given = [event for _, event in events if event["type"] == "response.shell_call_command.done"]
    assert [(event["command_index"], event["command"]) for event in given] == [(0, "ls"), (1, "pwd")]


def ran(stdout: str = "", stderr: str = "", outcome: Any = None) -> dict[str, Any]:
    return {"stdout": stdout, "stderr": stderr, "outcome": outcome or {"type": "exit", "exit_code": 0}}


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ([ran("a.txt\n")], "a.txt"),
        ([ran("a\n", "b\n", {"type": "exit", "exit_code": 2})], "a\nstderr:\nb\nexit code: 2"),
        ([ran("a\n"), ran(outcome={"type": "timeout"})], "a\n\ntimed out"),
        ([ran()], ""),
        ([], ""),
    ],
)
def test_what_a_shell_wrote(output: list[dict[str, Any]], text: str) -> None:
    (message,) = messages({"type": "shell_call_output", "call_id": "c", "output": output})
    assert message == Message("tool", text, tool_call_id="c")


def test_other_results() -> None:
    local = {"type": "local_shell_call_output", "output": '{"output": "a"}'}
    for named in ({"id": "lsh_a1_0"}, {"id": "call_a1_0"}, {"id": "x", "call_id": "call_a1_0"}):
        (message,) = messages({**local, **named})
        assert message == Message("tool", '{"output": "a"}', tool_call_id="call_a1_0")
    patched = {"type": "apply_patch_call_output", "call_id": "c", "status": "completed"}
    assert messages(patched) == (Message("tool", tool_call_id="c"),)
    failed = {**patched, "status": "failed", "output": "No such file."}
    assert messages(failed) == (Message("tool", "No such file.", tool_call_id="c", is_error=True),)
    shown = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="}
    (screen,) = messages({"type": "computer_call_output", "call_id": "c", "output": shown})
    assert screen == Message("tool", tool_call_id="c", images=("data:image/png;base64,AA==",))
    (nothing,) = messages(
        {"type": "computer_call_output", "call_id": "c", "output": {**shown, "image_url": ""}}
    )
    assert nothing == Message("tool", tool_call_id="c")


def call(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": f"{kind}_call", "call_id": "c", **members}


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (call("local_shell"), "input[0].action.type: Field required"),
        (call("local_shell", action={"type": "run"}), "input[0].action.type: Input should be 'exec'"),
        (call("local_shell", action={"type": "exec"}), "input[0].action.command: Field required"),
        (call("local_shell", action="ls"), "input[0].action: expected an object"),
        (call("shell", action={"commands": "ls"}), "input[0].action.commands: expected an array, got str"),
        (call("shell", action={"commands": ["ls", 3]}), "input[0].action.commands[1]: expected a string, got int"),
        (call("shell", action={"commands": []}), "input[0].action.commands: expected at least 1"),
        ({"type": "shell_call", "action": {"commands": ["ls"]}}, "input[0].call_id: Field required"),
        (call("apply_patch"), "input[0].operation.type: Field required"),
        (call("apply_patch", operation={"type": "move", "path": "a"}), "operation.type: 'move' is not one of"),
        (call("apply_patch", operation={"type": "update_file", "path": "a"}), "operation.diff: Field required"),
        (call("computer"), "input[0].action.type: Field required"),
        (call("computer", action={"type": "click", "x": 1, "y": 2}), "input[0].action.button: Field required"),
        (call("computer", actions=[CLICK, {"type": "jump"}]), "input[0].actions[1].type: 'jump' is not one of"),
        (call("computer", actions={"type": "wait"}), "input[0].actions: expected an array"),
        (call("shell", type="shell_call_output"), "input[0].output: Field required"),
        (call("shell", type="shell_call_output", output="a"), "input[0].output: expected an array"),
        (
            call("shell", type="shell_call_output", output=[ran(outcome={"type": "exit"})]),
            "input[0].output[0].outcome.exit_code: Field required",
        ),
        (
            call("shell", type="shell_call_output", output=[ran(outcome={"type": "died"})]),
            "input[0].output[0].outcome.type: 'died' is not one of",
        ),
        (
            call("shell", type="shell_call_output", output=[{"stdout": "", "stderr": ""}]),
            "input[0].output[0].outcome: Field required",
        ),
        ({"type": "local_shell_call_output", "output": ""}, "input[0].id: Field required"),
        ({"type": "local_shell_call_output", "id": "x"}, "input[0].output: Field required"),
        (call("x", type="apply_patch_call_output"), "input[0].status: Field required"),
        (call("x", type="apply_patch_call_output", status="ok"), "input[0].status: 'ok' is not one of"),
        (call("x", type="computer_call_output"), "input[0].output: Field required"),
        (
            call("x", type="computer_call_output", output={"type": "input_image"}),
            "input[0].output.type: Input should be 'computer_screenshot'",
        ),
        (
            call("x", type="computer_call_output", output={"type": "computer_screenshot", "file_id": "f"}),
            "input[0].output.file_id: uploaded files are not supported",
        ),
        (
            call("x", type="computer_call_output", output={"type": "computer_screenshot"}),
            "input[0].output.image_url: Field required",
        ),
    ],
)  # fmt: skip
def test_a_malformed_item_is_refused_with_what_is_wrong(item: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestProblem) as caught:
        messages(item)
    assert message in caught.value.problem.message


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ("shell", "shell"),
        ("apply_patch", "apply_patch"),
        ("computer", "computer"),
        ("computer_use", "computer"),
    ],
)
def test_one_of_them_may_be_demanded(choice: str, name: str) -> None:
    request = parse(tools=ALL, tool_choice={"type": choice})
    assert request.tool_choice == name
    answer = Answer("a1", "m", Message("assistant"), "stop", TokenUsage(4, 2), 5)
    body = json.loads(RESPONSES.render([answer], request))
    assert (body["tools"], body["tool_choice"]) == (ALL, {"type": name})
    for tools in ([LOCAL], [{**FUNCTION, "name": name}]):
        with pytest.raises(RequestProblem, match=f"'{name}' is not among the tools"):
            parse(tools=tools, tool_choice={"type": choice})


def wanted(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call><|im_end|>"


RESULTS: dict[str, dict[str, Any]] = {
    "local_shell": {"output": "a.txt"},
    "shell": {"output": [ran("a.txt\n")]},
    "apply_patch": {"status": "completed", "output": "Done"},
    "computer": {"output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="}},
}


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["plain", "raw", "helper"])
@pytest.mark.parametrize("name", ["local_shell", "shell", "apply_patch"])
async def test_openais_client_runs_a_call(make_world: MakeWorld, name: str, how: str) -> None:
    arguments = next(arguments for known, arguments in FITS if known == name)
    async with make_world(wanted(name, arguments), "Done.<|im_end|>") as world:
        session = await world.open()
        async with openai.AsyncOpenAI(base_url=f"{world.proxy.url}/v1", api_key=session.key) as client:
            items: list[Any] = [USER]
            first = await ask(client, items, how)
            (item,) = first.output
            assert (item.type, item.call_id) == (f"{name}_call", f"call_{world.calls(session)[0].id}_0")
            result = {"type": f"{name}_call_output", "call_id": item.call_id, **RESULTS[name]}
            second = await ask(client, [*items, item, result], how)
            assert second.output_text == "Done."
        one, two = world.calls(session)
        assert (two.parent_call_id, world.break_of(two)) == (one.id, None)


@pytest.mark.anyio
async def test_a_screenshot_for_a_policy_that_reads_text_is_refused(make_world: MakeWorld) -> None:
    async with make_world(wanted("computer", {"actions": [CLICK]}), "Done.<|im_end|>") as world:
        session = await world.open()
        async with openai.AsyncOpenAI(base_url=f"{world.proxy.url}/v1", api_key=session.key) as client:
            (item,) = (await ask(client, [USER], "plain")).output
            assert [action.type for action in item.actions] == ["click"]
            result = {"type": "computer_call_output", "call_id": item.call_id, **RESULTS["computer"]}
            with pytest.raises(openai.BadRequestError, match="does not support image input"):
                await ask(client, [USER, item, result], "plain")
        assert len(world.calls(session)) == 1


async def ask(client: openai.AsyncOpenAI, items: list[Any], how: str) -> Any:
    """The SDK's response object, got whole, from raw events, or from its own stream helper."""
    tools: Any = ALL
    if how == "plain":
        return await client.responses.create(model="m", input=items, tools=tools)
    if how == "helper":
        async with client.responses.stream(model="m", input=items, tools=tools) as events:
            return await events.get_final_response()
    stream = await client.responses.create(model="m", input=items, tools=tools, stream=True)
    return [event async for event in stream][-1].response  # type: ignore[union-attr]
