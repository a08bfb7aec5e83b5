"""Conversations with policies of several grammars through the proxy, and one that has none."""

import json
from pathlib import Path
from typing import Any

import pytest

from harnessgym.message import Message, ToolCall
from harnessgym.store.tables import runs
from harnessgym.traces.completions import Languages
from harnessgym.traces.transcript import transcript
from proxies.language import PolicyLanguage
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import MakeWorld
from tests.proxies.parsers.families import FAMILIES, TOOL
from tests.proxies.parsers.test_choice import PLAIN

pytestmark = pytest.mark.anyio
BY_NAME = {family.name: family for family in FAMILIES}
TOOLS = [TOOL.to_template()]
ASKED: dict[str, Any] = {"role": "user", "content": "What is it?"}
VALUES = {"name": "3", "count": 3, "deep": {"of": [1, True]}}
CALL = ToolCall("a", "find", json.dumps(VALUES))


def sampled(language: PolicyLanguage, turn: Message) -> list[int]:
    """Tokens of a turn behind the generation prompt, up to its end."""
    ids = language.renderer.written_turn(turn)  # type: ignore[attr-defined]
    end = max(at for at, token in enumerate(ids) if token in language.stop_token_ids)
    return list(ids[: end + 1])


@pytest.mark.parametrize(
    "name",
    [
        "qwen3.5",
        "minimax-m2",
        "deepseek-v3.1",
        "kimi-k2",
        "gemma4",
        "mistral-v3",
        "gpt-oss",
        "llama-3.2",
        "lfm2",
    ],
)
async def test_a_call_and_its_result(make_world: MakeWorld, tmp_path: Path, name: str) -> None:
    policy = BY_NAME[name].write(tmp_path / "policy")
    language = PolicyLanguage.of_policy(policy)
    thought = "hm" if BY_NAME[name].reasons else ""
    answers = [
        sampled(language, Message("assistant", "", reasoning=thought, tool_calls=(CALL,))),
        sampled(language, Message("assistant", "Done.", reasoning=thought)),
    ]
    upstreams = {"w0": ScriptedUpstream(answers)}
    async with make_world(upstreams=upstreams, policy=policy) as world:
        session = await world.open()
        first = (await world.chat(session.key, [ASKED], tools=TOOLS)).json()["choices"][0]
        assert first["finish_reason"] == "tool_calls"
        (call,) = first["message"]["tool_calls"]
        assert call["function"]["name"] == "find"
        assert json.loads(call["function"]["arguments"]) == VALUES
        # A proxy that is started again reads the answer with the tools of the stored request, and so do traces.
        await world.stop()
        await world.start()
        read = world.store.read(lambda conn: transcript(conn, world.rollout_id, Languages(policy)))
        answer = read.exchanges[0].answer
        assert answer is not None
        assert answer.tool_calls[0].parsed == VALUES
        result = {"role": "tool", "tool_call_id": call["id"], "content": "A lamp."}
        reply = await world.chat(session.key, [ASKED, first["message"], result], tools=TOOLS)
        assert reply.json()["choices"][0]["message"]["content"] == "Done."
        calls = world.calls(session)
        # The second prompt continues the first answer's tokens wherever the format allows that.
        whole = world.prompt(session, calls[1])
        assert world.break_of(calls[1]) is None
        assert whole[: len(world.prompt(session, calls[0])) + len(answers[0])] == [
            *world.prompt(session, calls[0]),
            *answers[0],
        ]
        assert "A lamp." in language.renderer.written(whole).decode()


async def test_tools_are_refused_for_a_policy_without_a_grammar(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    policy = BY_NAME["llama-3.1"].write(tmp_path / "policy")
    (policy / "chat_template.jinja").write_text(PLAIN)
    language = PolicyLanguage.of_policy(policy)
    upstreams = {"w0": ScriptedUpstream([language.renderer.encode("Hi.<|im_end|>")])}
    async with make_world(upstreams=upstreams, policy=policy) as world:
        session = await world.open()
        refused = await world.chat(session.key, [ASKED], tools=TOOLS)
        assert refused.status_code == 400
        assert "does not support tools" in refused.text
        assert "name the parser" in refused.text
        for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            assert (await world.chat(session.key, [ASKED], **options)).status_code == 200


async def test_traces_are_read_with_the_parser_of_their_run(make_world: MakeWorld, tmp_path: Path) -> None:
    policy = BY_NAME["llama-3.1"].write(tmp_path / "policy")
    (policy / "chat_template.jinja").write_text(PLAIN)
    language = PolicyLanguage.of_policy(policy, "pythonic")
    upstreams = {"w0": ScriptedUpstream([language.renderer.encode("[find(name='3', count=3)]<|eot_id|>")])}
    async with make_world(upstreams=upstreams, policy=policy, parser="pythonic") as world:
        session = await world.open()
        answer = (await world.chat(session.key, [ASKED], tools=TOOLS)).json()["choices"][0]["message"]
        assert answer["tool_calls"][0]["function"]["arguments"] == '{"name": "3", "count": 3}'
        for config, calls in (({}, 0), ({"parser": "pythonic"}, 1), ({"policy": {"parser": "pythonic"}}, 1)):
            world.store.write(lambda conn, config=config: conn.execute(runs.update().values(config=config)))
            read = world.store.read(lambda conn: transcript(conn, world.rollout_id, Languages(policy)))
            message = read.exchanges[0].answer
            assert message is not None
            assert len(message.tool_calls) == calls
