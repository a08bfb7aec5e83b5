"""Anthropic's tools that the client runs are functions for the policy, and ordinary calls for the client."""

import json
from typing import Any

import anthropic
import pytest

from proxies.dialect import RequestProblem
from proxies.dialects.messages import Messages
from tests.proxies.conftest import MakeWorld

pytestmark = pytest.mark.anyio
BASH = {"type": "bash_20250124", "name": "bash"}
EDITOR = {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}
EARLY_EDITOR = {"type": "text_editor_20250124", "name": "str_replace_editor"}
MEMORY = {"type": "memory_20250818", "name": "memory"}
COMPUTER = {
    "type": "computer_20250124",
    "name": "computer",
    "display_width_px": 800,
    "display_height_px": 600,
}


def parse(*tools: dict[str, Any]) -> Any:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "tools": tools}
    return Messages().parse(json.dumps(body).encode(), {})


@pytest.mark.parametrize("tool", [BASH, EDITOR, EARLY_EDITOR, MEMORY, COMPUTER])
def test_the_policy_gets_a_function_of_the_client_s_name(tool: dict[str, Any]) -> None:
    (spec,) = parse(tool).tools
    assert spec.name == tool["name"]
    assert spec.description
    assert set(spec.parameters["required"] if tool is not BASH else ["command"]) <= set(
        spec.parameters["properties"]
    )


def test_the_editor_has_the_arguments_of_its_version() -> None:
    early, late = parse(EARLY_EDITOR, EDITOR).tools
    assert "undo_edit" in early.parameters["properties"]["command"]["enum"]
    assert "undo_edit" not in late.parameters["properties"]["command"]["enum"]
    assert "insert_text" in late.parameters["properties"]
    assert "insert_text" not in early.parameters["properties"]


def test_the_screen_s_size_is_told() -> None:
    (spec,) = parse(COMPUTER).tools
    assert "800 x 600 pixels" in spec.description
    assert "scroll" in spec.parameters["properties"]["action"]["enum"]


@pytest.mark.parametrize("side", ["display_width_px", "display_height_px"])
def test_a_screen_without_a_size_is_refused(side: str) -> None:
    with pytest.raises(RequestProblem, match=rf"tools\[0\].{side}: Field required"):
        parse({name: value for name, value in COMPUTER.items() if name != side})


@pytest.mark.parametrize("kind", ["web_search_20250305", "code_execution_20250522", "web_fetch_20250910"])
def test_what_the_provider_runs_is_refused(kind: str) -> None:
    with pytest.raises(RequestProblem, match="the provider runs them"):
        parse({"type": kind, "name": "x"})


async def test_anthropics_client_runs_a_call(make_world: MakeWorld) -> None:
    call = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>'
    async with make_world(call, "Done.<|im_end|>") as world:
        session = await world.open()
        async with anthropic.AsyncAnthropic(base_url=world.proxy.url, api_key=session.key) as client:
            messages: list[Any] = [{"role": "user", "content": "List the files."}]
            tools: list[Any] = [BASH, EDITOR, MEMORY]
            answer = await client.messages.create(
                model="policy", max_tokens=90, messages=messages, tools=tools
            )
            (used,) = answer.content
            assert used.type == "tool_use"
            assert (used.name, used.input) == ("bash", {"command": "ls"})
            result = {"type": "tool_result", "tool_use_id": used.id, "content": "a.txt"}
            messages += [
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": [result]},
            ]
            answer = await client.messages.create(
                model="policy", max_tokens=90, messages=messages, tools=tools
            )
            (said,) = answer.content
            assert said.type == "text"
            assert said.text == "Done."
        one, two = world.calls(session)
        assert two.parent_call_id == one.id
