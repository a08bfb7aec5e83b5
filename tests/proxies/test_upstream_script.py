"""Scripted answers for users: a file, or nothing at all, behind a real proxy."""

import json
from pathlib import Path

import pytest

from harnessgym.errors import ConfigError, ProxyError, UpstreamError
from harnessgym.message import Message, Sampling, ToolCall
from harnessgym.proxy_client import ControlClient
from harnessgym.store.workers import WorkerRow, of_run
from harnessgym.traces.trajectories import rows_of
from proxies.app import Proxy
from proxies.language import PolicyLanguage
from proxies.upstream import Upstream
from proxies.upstreams.script import ScriptUpstream
from proxies.workers import connect_upstream
from tests.proxies.conftest import KEY, MakeWorld

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}}},
    }
]
TOML = """
answers = [
    "Let me look.",
    { tool_call = { name = "bash", arguments = { command = "ls <here>" } } },
    { text = "Both.", tool_calls = [{ name = "bash" }, { name = "bash", arguments = { command = "pwd" } }] },
]
"""


def play(address: str, language: PolicyLanguage) -> Upstream:
    upstream = connect_upstream(WorkerRow("w0", None, "scripted", address, 0, "ready"), language)
    assert isinstance(upstream, ScriptUpstream)
    return upstream


@pytest.mark.parametrize("kind", ["toml", "json"])
async def test_a_script_is_played_in_turn_and_again(
    make_world: MakeWorld, language: PolicyLanguage, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"script.{kind}"
    call = {"name": "bash", "arguments": {"command": "ls <here>"}}
    calls = [{"name": "bash"}, {"name": "bash", "arguments": {"command": "pwd"}}]
    answers = ["Let me look.", {"tool_call": call}, {"text": "Both.", "tool_calls": calls}]
    path.write_text(TOML if kind == "toml" else json.dumps({"answers": answers}))
    async with make_world(upstreams={"w0": play(f"scripted:{path}", language)}) as world:
        session = await world.open()
        replies = [(await world.chat(session.key, HI, tools=TOOLS)).json()["choices"][0] for _ in range(4)]
        said = [reply["message"] for reply in replies]
        assert [message["content"] for message in said] == ["Let me look.", None, "Both.", "Let me look."]
        assert [reply["finish_reason"] for reply in replies] == ["stop", "tool_calls", "tool_calls", "stop"]
        made = [
            [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", [])]
            for message in said
        ]
        assert made == [[], [{"command": "ls <here>"}], [{}, {"command": "pwd"}], []]
        for recorded in world.calls(session):
            completion = world.completion(session, recorded)
            assert completion.ids[-1] in language.stop_token_ids
            assert completion.logprobs is not None
        trajectory = world.store.read(lambda conn: rows_of(conn, world.rollout_id, group_id="g"))
        assert trajectory.trained == trajectory.sampled > 0


async def test_without_a_file_it_is_polite_and_a_limit_cuts_it(
    make_world: MakeWorld, language: PolicyLanguage
) -> None:
    async with make_world(upstreams={"w0": play("scripted:", language)}) as world:
        session = await world.open()
        whole = (await world.chat(session.key, HI)).json()["choices"][0]
        assert "Thank you" in whole["message"]["content"]
        short = (await world.chat(session.key, HI, max_tokens=3)).json()["choices"][0]
        assert short["finish_reason"] == "length"
        assert whole["message"]["content"].startswith(short["message"]["content"])


async def test_a_registered_script_that_cannot_be_played_is_refused_and_not_remembered(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    (tmp_path / "good.toml").write_text('answers = ["fine"]')
    (tmp_path / "bad.toml").write_text("answers = [{ txt = 'x' }]")
    async with make_world(upstreams={}) as world:
        await world.stop()
        world.proxy = Proxy(world.settings, world.store)
        await world.proxy.start()
        world.control = ControlClient(world.proxy.control_address, KEY)
        for script, reason in (("bad.toml", "txt"), ("missing.toml", "no config file")):
            with pytest.raises(ProxyError, match=reason):
                await world.control.register("w1", f"scripted:{tmp_path / script}", 0, kind="scripted")
        assert world.store.read(lambda conn: of_run(conn, world.settings.run_id)) == []
        await world.control.register("w1", f"scripted:{tmp_path}/good.toml", 0, kind="scripted")
        session = await world.open()
        assert (await world.chat(session.key, HI)).json()["choices"][0]["message"]["content"] == "fine"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("answers = []", "at least 1"),
        ("answers = [{}]", "text or a tool_call"),
        ("reply = ['x']", "no such setting"),
        ("answers = [{ text = '<tool_call>\\n{}' }, 'x']", None),
        (
            'answers = [{ text = \'<tool_call>{"name": "f", "arguments": {}}</tool_call>\' }]',
            "answer 1 cannot be played",
        ),
    ],
)
def test_a_script_is_checked_when_it_is_read(
    language: PolicyLanguage, tmp_path: Path, script: str, reason: str | None
) -> None:
    path = tmp_path / "script.toml"
    path.write_text(script)
    if reason is None:
        play(f"scripted:{path}", language)
        return
    with pytest.raises(ConfigError, match=reason):
        play(f"scripted:{path}", language)


async def test_a_script_needs_a_language() -> None:
    with pytest.raises(UpstreamError, match="behind a proxy"):
        await anext(ScriptUpstream("scripted:").generate([1], Sampling(), salt=""))


@pytest.mark.parametrize(
    "message",
    [
        Message("assistant", "Ünïcode, and\n\nlines\n"),
        Message("assistant", "A turn ends with <|im_end|>, they say."),
        Message(
            "assistant", "", tool_calls=(ToolCall("x", "f", '{"a": [1, "<b>"]}'), ToolCall("y", "g", "{}"))
        ),
        Message("assistant", "Both.", tool_calls=(ToolCall("x", "f", '{"ä": null}'),)),
    ],
)
def test_what_is_written_is_read_back(language: PolicyLanguage, message: Message) -> None:
    ids = language.write(message)
    assert ids[-1] in language.stop_token_ids
    assert sum(token in language.stop_token_ids for token in ids) == 1
    assert language.read(ids).digest == message.digest


@pytest.mark.parametrize(
    "message",
    [
        Message("assistant", "47", reasoning="The shipped template knows no reasoning."),
        Message("assistant", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
    ],
)
def test_what_would_be_read_as_something_else_is_refused(language: PolicyLanguage, message: Message) -> None:
    with pytest.raises(UpstreamError, match="cannot be written"):
        language.write(message)
    assert language.read(language.write(message.content)).content in ("47", "")
