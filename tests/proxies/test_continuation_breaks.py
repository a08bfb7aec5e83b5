"""Every class of break, by the requests of a harness through a real proxy, and what is stored of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import delete, select

from harnessgym.proxy_client import OpenedSession
from harnessgym.store.tables import bodies as bodies_table
from harnessgym.store.tables import calls as calls_table
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import MakeWorld, World
from tests.proxies.talk import Json, result, system, tool, user

pytestmark = pytest.mark.anyio
END = "<|im_end|>"
TOOLS = [tool("find", "name"), tool("price", "id")]
CALL = '<tool_call>\n{"name": "find", "arguments": {"name": "red lamp", "limit": 1}}\n</tool_call>'
SYSTEM = system(
    "You are a careful agent. Use the tools. Today is Monday, 3 March 2025. Working directory: /work."
)
SUMMARY = "The user wants the price of the red lamp. Its id is Q7, and the price list was not read yet."


@dataclass
class Harness:
    """Sends chat completions of one session, and remembers the answers."""

    world: World
    session: OpenedSession
    answers: list[Json] = field(default_factory=list)

    async def ask(self, messages: Sequence[Json], tools: Sequence[Json] = TOOLS, **fields: Any) -> Json:
        """The answer as a message of the next request."""
        more = {"tools": list(tools)} if tools else {}
        response = await self.world.chat(self.session.key, list(messages), **more, **fields)
        assert response.status_code == 200, response.text
        message: Json = response.json()["choices"][0]["message"]
        self.answers.append(message)
        return message

    def breaks(self) -> list[tuple[str | None, str | None]]:
        """Class and detail of the break of each call."""
        query = select(calls_table.c.break_class, calls_table.c.break_detail).order_by(calls_table.c.ordinal)
        found = self.world.store.read(lambda conn: conn.execute(query).all())
        return [(row.break_class, row.break_detail) for row in found]

    def last(self) -> tuple[str | None, str]:
        """The break of the last call, all others having none."""
        *others, (kind, detail) = self.breaks()
        assert [other for other, _ in others] == [None] * len(others)
        return kind, detail or ""

    def call(self, ordinal: int) -> str:
        """The id of a call."""
        return self.world.calls(self.session)[ordinal].id


async def harness(world: World, **options: Any) -> Harness:
    return Harness(world, await world.open(**options))


async def test_a_date_that_changed_is_a_nonce(make_world: MakeWorld) -> None:
    async with make_world(f"{CALL}{END}", f"47{END}") as world:
        h = await harness(world)
        asked = [SYSTEM, user("What is the price?")]
        answer = await h.ask(asked)
        tuesday = system(SYSTEM["content"].replace("Monday, 3 March", "Tuesday, 4 March"))
        await h.ask([tuesday, asked[1], answer, result("Q7", answer["tool_calls"][0]["id"])])
        kind, detail = h.last()
        assert kind == "nonce"
        first, hunk, old, new = detail.split("\n")
        assert (
            first == f"message 0 (system), compared with call {h.call(0)}: a date, id or counter has changed"
        )
        assert hunk.startswith("@@ -")
        assert "Monday, 3" in old
        assert "Tuesday, 4" in new
        assert (old[0], new[0]) == ("-", "+")


async def test_a_counter_in_a_user_message_is_a_nonce(make_world: MakeWorld) -> None:
    async with make_world(f"one{END}", f"two{END}") as world:
        h = await harness(world)
        answer = await h.ask([SYSTEM, user("<reminder tokens_used=1200/> Find the lamp.")])
        await h.ask([SYSTEM, user("<reminder tokens_used=3400/> Find the lamp."), answer, user("Go on.")])
        kind, detail = h.last()
        assert kind == "nonce"
        assert detail.startswith("message 1 (user)")


async def test_reasoning_of_which_a_part_came_back(make_world: MakeWorld) -> None:
    async with make_world(f"<think>\nIt is a lamp. It is red.\n</think>\n\n47{END}", f"48{END}") as world:
        h = await harness(world)
        answer = await h.ask([SYSTEM, user("What?")])
        answer["reasoning_content"] = "It is a lamp."
        await h.ask([SYSTEM, user("What?"), answer, user("Sure?")])
        kind, detail = h.last()
        assert kind == "stripped_reasoning"
        assert detail.startswith(
            f"message 2 (assistant), compared with call {h.call(0)}: part of the reasoning is missing\n@@"
        )


def other_form(answer: Json, form: str) -> Json:
    function = answer["tool_calls"][0]["function"]
    if form == "text":
        said = f"Calling tools:\n[{{'name': '{function['name']}', 'arguments': {function['arguments']}}}]"
        return {"role": "assistant", "content": said}
    arguments = {
        "types": '{"name": "red lamp", "limit": "1"}',
        "defaults": '{"name": "red lamp", "limit": 1, "deep": null}',
    }
    return {
        **answer,
        "tool_calls": [{**answer["tool_calls"][0], "function": {**function, "arguments": arguments[form]}}],
    }


@pytest.mark.parametrize("form", ["text", "types", "defaults"])
async def test_a_tool_call_in_another_form(make_world: MakeWorld, form: str) -> None:
    async with make_world(f"{CALL}{END}", f"47{END}") as world:
        h = await harness(world)
        asked = [SYSTEM, user("What?")]
        answer = await h.ask(asked)
        await h.ask([*asked, other_form(answer, form), user("Observation: Q7")])
        kind, detail = h.last()
        assert kind == "tool_reserialisation"
        assert detail.startswith(f"message 2 (assistant), compared with call {h.call(0)}: ")
        assert "red lamp" in detail


async def test_another_tool_call_is_an_edit(make_world: MakeWorld) -> None:
    async with make_world(f"{CALL}{END}", f"47{END}") as world:
        h = await harness(world)
        answer = await h.ask([SYSTEM, user("What?")])
        answer["tool_calls"][0]["function"]["arguments"] = '{"name": "blue chair", "limit": 1}'
        await h.ask([SYSTEM, user("What?"), answer, result("Q7", answer["tool_calls"][0]["id"])])
        assert h.last()[0] == "edited_history"


async def test_equal_text_in_other_tokens_is_drift(make_world: MakeWorld) -> None:
    async with make_world(upstreams={}) as world:
        spelt = [token for letter in "the value" for token in world.text(letter)]
        await restart_with(world, [*spelt, *world.text(END)])
        h = await harness(world, history="template")
        answer = await h.ask([SYSTEM, user("What?")])
        await h.ask([SYSTEM, user("What?"), answer, user("Sure?")])
        kind, detail = h.last()
        assert kind == "bpe_drift"
        assert detail.startswith(f"message 2 (assistant), compared with call {h.call(0)}: the same text")


async def restart_with(world: World, *answers: Sequence[int]) -> None:
    world.upstreams["w0"] = ScriptedUpstream(list(answers))
    await world.stop()
    await world.start()


async def test_an_answer_that_ended_at_a_stop_string(make_world: MakeWorld) -> None:
    async with make_world("I look it up. Observation: Q7", f"47{END}") as world:
        h = await harness(world)
        answer = await h.ask([SYSTEM, user("What?")], stop=["Observation:"])
        assert answer["content"] == "I look it up. "
        await h.ask([SYSTEM, user("What?"), answer, user("Observation: Q7")])
        kind, detail = h.last()
        assert kind == "stop_string"
        assert detail.startswith(
            f"message 2 (assistant), compared with call {h.call(0)}: the answer ended at a stop string"
        )


async def test_an_answer_that_was_cut_off(make_world: MakeWorld) -> None:
    async with make_world(upstreams={}) as world:
        spelt = [token for letter in "the value" for token in world.text(letter)]
        await restart_with(world, [*spelt, *world.text(END)])
        h = await harness(world)
        answer = await h.ask([SYSTEM, user("What?")], max_tokens=4)
        await h.ask([SYSTEM, user("What?"), answer, user("Go on.")])
        kind, detail = h.last()
        assert kind == "length_cut"
        assert f"compared with call {h.call(0)}: the answer was cut off" in detail


async def work(h: Harness, turns: int) -> list[Json]:
    messages = [SYSTEM, user("Find the price of the red lamp.")]
    for turn in range(turns):
        answer = await h.ask(messages)
        messages += [answer, result(f"Q{turn}", answer["tool_calls"][0]["id"])]
    return messages


@pytest.mark.parametrize("with_tools", [True, False])
async def test_a_summarised_conversation_is_a_compaction(make_world: MakeWorld, with_tools: bool) -> None:
    async with make_world(*[f"{CALL}{END}"] * 3, f"{SUMMARY}{END}", f"47{END}") as world:
        h = await harness(world)
        messages = await work(h, 3)
        request = user("Summarise this conversation so that you can go on from the summary.")
        summary = await h.ask([*messages, request], TOOLS if with_tools else ())
        carried = f"This session is being continued. <summary>{summary['content']}</summary>"
        await h.ask([SYSTEM, user(carried)])
        *_, (asked, why), (kind, detail) = h.breaks()
        assert asked == (None if with_tools else "compaction")
        assert why is None or why.endswith("it asks for a summary, without the tools")
        assert kind == "compaction"
        assert detail is not None
        assert detail.startswith("message 1 (user), compared with call ")
        assert f"one quotes the answer of call {h.call(3)}" in detail


async def test_a_summary_in_other_words_is_a_compaction(make_world: MakeWorld) -> None:
    async with make_world(f"{CALL}{END}") as world:
        h = await harness(world)
        await work(h, 4)
        await h.ask([SYSTEM, user("Summary of the conversation so far: the lamp is Q7. Go on.")])
        kind, detail = h.last()
        assert kind == "compaction"
        assert "9 messages became 2, which mention a summary" in detail or "10 messages became 2" in detail


async def test_an_edited_tool_result(make_world: MakeWorld) -> None:
    async with make_world(f"{CALL}{END}") as world:
        h = await harness(world)
        messages = await work(h, 3)
        messages[3] = result("[old tool result cleared]", messages[3]["tool_call_id"])
        await h.ask(messages)
        kind, detail = h.last()
        assert kind == "edited_history"
        assert detail.startswith("message 3 (tool), compared with call ")
        assert "the tool message has changed" in detail
        assert "+[old tool result cleared]" in detail


async def test_another_agent_that_goes_on_is_a_handoff(make_world: MakeWorld) -> None:
    async with make_world(f"{CALL}{END}") as world:
        h = await harness(world)
        messages = await work(h, 2)
        coder = [system("You write code. Use the shell."), *messages[1:]]
        await h.ask(coder, [tool("shell", "command")])
        kind, detail = h.last()
        assert kind == "handoff"
        first, *hunk = detail.split("\n")
        why = "another agent continues its history: another system prompt, other tools: +shell -find -price"
        assert first == f"message 0 (system), compared with call {h.call(1)}: {why}"
        assert "You write code" in hunk[-1]


async def test_an_agent_that_is_offered_one_more_tool_is_the_same(make_world: MakeWorld) -> None:
    async with make_world(f"{CALL}{END}") as world:
        h = await harness(world)
        messages = await work(h, 2)
        await h.ask(messages, [*TOOLS, tool("buy", "id")])
        kind, detail = h.last()
        assert kind == "edited_history"
        assert "+buy" in detail
        assert len({call.agent_id for call in world.calls(h.session)}) == 1


async def test_a_tool_that_is_described_otherwise_is_an_edit(make_world: MakeWorld) -> None:
    async with make_world(f"{CALL}{END}") as world:
        h = await harness(world)
        messages = await work(h, 2)
        await h.ask(messages, [tool("find", "name", "limit"), TOOLS[1]])
        kind, detail = h.last()
        assert kind == "edited_history"
        assert "a tool's description or their order has changed" in detail


@pytest.mark.parametrize("difference", ["system", "tools"])
async def test_another_agent_is_told_from_another_task(make_world: MakeWorld, difference: str) -> None:
    async with make_world(f"{CALL}{END}") as world:
        h = await harness(world)
        await work(h, 2)
        if difference == "system":
            await h.ask(
                [system("You search files and report where things are."), user("Find the price list.")]
            )
        else:
            await h.ask([SYSTEM, user("Find the price list.")], TOOLS[:1])
        kind, detail = h.last()
        assert kind == "sub_agent"
        assert ("another system prompt" if difference == "system" else "other tools: -price") in detail


async def test_a_fresh_prompt_of_the_same_agent_is_a_root(make_world: MakeWorld) -> None:
    async with make_world(f"one{END}") as world:
        h = await harness(world)
        await h.ask([SYSTEM, user("Page: a shop with lamps.")])
        await h.ask([SYSTEM, user("Page: a basket, empty.")])
        kind, detail = h.last()
        assert kind == "new_root"
        assert detail.startswith(f"message 1 (user), compared with call {h.call(0)}: ")


@pytest.mark.parametrize("what", ["a window", "the answer"])
async def test_messages_that_are_left_out(make_world: MakeWorld, what: str) -> None:
    async with make_world(f"{CALL}{END}") as world:
        h = await harness(world)
        messages = await work(h, 3)
        await h.ask(
            [*messages[:2], *messages[4:]]
            if what == "a window"
            else [*messages[:6], *messages[7:], user("And?")]
        )
        kind, detail = h.last()
        assert kind == "dropped_messages"
        assert ("2 messages are left out" if what == "a window" else "the answer is left out") in detail


async def test_an_answer_that_is_passed_over(make_world: MakeWorld) -> None:
    async with make_world(f"one{END}") as world:
        h = await harness(world)
        await h.ask([SYSTEM, user("What?")])
        await h.ask([SYSTEM, user("What?"), user("Answer!")])
        kind, detail = h.last()
        assert kind == "dropped_messages"
        assert "the answer is left out" in detail


async def test_a_template_that_writes_something_else(make_world: MakeWorld) -> None:
    """The shipped template leaves reasoning and the whitespace around an answer to the policy."""
    async with make_world(f"one  {END}", f"two{END}") as world:
        h = await harness(world, history="template")
        answer = await h.ask([SYSTEM, user("What?")])
        await h.ask([SYSTEM, user("What?"), {**answer, "content": answer["content"].strip()}, user("Sure?")])
        kind, detail = h.last()
        assert kind == "template"
        assert detail.startswith(
            f"message 2 (assistant), compared with call {h.call(0)}: the template writes something else"
        )


def rewritten(messages: list[Json], how: str) -> list[Json]:
    """A conversation of three turns as a harness breaks it."""
    out = [dict(message) for message in messages]
    if how == "nonce":
        out[0] = system(SYSTEM["content"].replace("Monday, 3 March", "Tuesday, 4 March"))
    elif how == "edited_history":
        out[3] = result("[old tool result cleared]", messages[3]["tool_call_id"])
    elif how == "dropped_messages":
        del out[2:4]
    elif how == "tool_reserialisation":
        out[2] = other_form(messages[2], "defaults")
    elif how == "handoff":
        out[0] = system("You write code.")
    elif how == "compaction":
        out = [SYSTEM, user("Summary of the conversation so far: the lamp is Q7. Go on.")]
    elif how == "new_root":
        out = [SYSTEM, user("Find the price of the blue chair.")]
    elif how == "sub_agent":
        out = [system("You search files."), user("Find the price list.")]
    return out


HABITS = [
    "nonce", "edited_history", "dropped_messages", "tool_reserialisation", "handoff", "compaction", "new_root", "sub_agent",
]  # fmt: skip


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "after a restart"])
@pytest.mark.parametrize("how", HABITS)
async def test_a_break_is_told_after_a_restart_as_before_it(
    make_world: MakeWorld, how: str, restarted: bool
) -> None:
    async with make_world(f"{CALL}{END}") as world:
        h = await harness(world)
        messages = await work(h, 3)
        if restarted:
            await world.stop()
            await world.start()
        await h.ask(rewritten(messages, how))
        kind, detail = h.last()
        assert kind == how
        assert f"compared with call {h.call(2)}" in detail


async def test_what_the_store_no_longer_has_is_said_to_be_missing(make_world: MakeWorld) -> None:
    async with make_world(f"one{END}") as world:
        h = await harness(world)
        await h.ask([SYSTEM, user("What?")])
        await world.stop()
        world.store.write(lambda conn: conn.execute(delete(bodies_table)))
        await world.start()
        await h.ask([SYSTEM, user("What?"), {"role": "assistant", "content": "two"}, user("Sure?")])
        kind, detail = h.last()
        assert kind == "edited_history"
        assert "not in memory" in detail


async def test_a_break_is_told_once_and_its_branch_goes_on(make_world: MakeWorld) -> None:
    async with make_world(f"one{END}") as world:
        h = await harness(world)
        first = await h.ask([SYSTEM, user("What?")])
        edited = [SYSTEM, user("What?"), {**first, "content": "two"}, user("Sure?")]
        second = await h.ask(edited)
        await h.ask([*edited, second, user("Really?")])
        assert [kind for kind, _ in h.breaks()] == [None, "edited_history", None]
        calls = world.calls(h.session)
        assert calls[2].parent_call_id == calls[1].id


async def test_details_are_short(make_world: MakeWorld) -> None:
    async with make_world(f"{CALL}{END}") as world:
        h = await harness(world)
        messages = await work(h, 2)
        messages[3] = result("\n" * 600 + "x" * 400, messages[3]["tool_call_id"])
        await h.ask(messages)
        assert len(h.last()[1]) < 750


CLAUDE = {"model": "claude", "max_tokens": 64}


async def test_what_claude_code_changes_from_call_to_call_breaks_nothing(make_world: MakeWorld) -> None:
    answer = f"<think>\nhm\n</think>\n\nLooking.\n{CALL}{END}"
    async with make_world(answer, f"47{END}") as world:
        h = await harness(world)
        url = f"{world.proxy.url}/s/{h.session.key}/v1/messages"
        tools = [
            {
                "name": "find",
                "description": "Find.",
                "input_schema": {"type": "object", "properties": {"name": {}}},
            }
        ]
        marker = {"cache_control": {"type": "ephemeral"}}

        def prompt(nonce: str) -> list[Json]:
            billing = f"x-anthropic-billing-header: cc_version=2.1.197.{nonce}; cch={nonce};"
            return [{"type": "text", "text": billing}, {"type": "text", "text": "Be careful.", **marker}]

        asked = [{"role": "user", "content": [{"type": "text", "text": "What?", **marker}]}]
        body = {**CLAUDE, "system": prompt("2bb"), "messages": asked, "tools": tools}
        content = (await world.http.post(url, json=body)).json()["content"]
        thinking, text, use = content
        assert thinking["type"] == "thinking"
        replayed = [
            {**thinking, "signature": "of another kind"},
            {**text, "text": "Looking. "},
            {**use, "input": {"limit": 1.0, "name": "red lamp"}, **marker},
        ]
        more = {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": "Q7", **marker}],
        }
        messages = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": replayed}, more]
        response = await world.http.post(url, json={**body, "system": prompt("994"), "messages": messages})
        assert response.status_code == 200, response.text
        assert h.breaks() == [(None, None), (None, None)]
        assert world.calls(h.session)[1].parent_call_id == h.call(0)


async def test_the_nonce_is_no_part_of_a_prompt_in_any_protocol(make_world: MakeWorld) -> None:
    async with make_world(f"one{END}") as world:
        h = await harness(world)
        for nonce in ("2bb", "994"):
            await h.ask(
                [system(f"x-anthropic-billing-header: cc_version={nonce};\nBe careful."), user("What?")]
            )
        upstream = world.upstreams["w0"]
        assert isinstance(upstream, ScriptedUpstream)
        one, two = (world.language.renderer.written(asked.prompt).decode() for asked in upstream.asked)
        assert one == two
        assert "billing" not in one
        assert "Be careful." in one
