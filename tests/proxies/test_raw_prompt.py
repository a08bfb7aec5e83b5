"""Raw prompts: sampled tokens go on as they are, whatever the client makes of their text."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tokenizers import Tokenizer, processors

from harnessgym.proxy_client import OpenedSession
from harnessgym.store import tables
from harnessgym.traces.forest import Forest
from harnessgym.traces.verification.verify import verify
from proxies.dialect import ModelRequest, RequestProblem
from proxies.language import PolicyLanguage
from proxies.raw_prompt import RawPrompts, raw_chain
from proxies.renderers.template import TemplateRenderer
from proxies.upstreams.scripted import ScriptedUpstream
from tests.proxies.conftest import POLICY, MakeWorld, World

NEW_ROOT = ("none", "new_root")
JOINED = ("token_prefix", None)
EDITED = ("none", "edited_history")


async def complete(world: World, session: OpenedSession, prompt: Any, **options: Any) -> str:
    """The text of a completion."""
    body = {"model": "m", "prompt": prompt, "max_tokens": 100, **options}
    answer = await world.http.post(f"{world.proxy.url}/s/{session.key}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def asked(world: World) -> list[list[int]]:
    """The prompts that the engine was given."""
    upstream = world.upstreams["w0"]
    assert isinstance(upstream, ScriptedUpstream)
    return [list(request.prompt) for request in upstream.asked]


def link(world: World, session: OpenedSession, ordinal: int) -> tuple[str, str | None]:
    """How a call is joined to earlier ones, and why not."""
    wanted = select(tables.calls.c.parent_evidence, tables.calls.c.break_class)
    where = (tables.calls.c.session_id == session.session_id) & (tables.calls.c.ordinal == ordinal)
    evidence, broken = world.store.read(lambda conn: conn.execute(wanted.where(where)).one())
    return evidence, broken


def check_store(world: World, session: OpenedSession) -> None:
    """The store has what the engine was given, and knows it."""
    assert [world.prompt(session, call) for call in world.calls(session)] == asked(world)
    assert verify(world.store, world.settings.run_id).kinds <= {"span_version"}  # nothing was published here


def spelled(world: World, text: str) -> list[int]:
    """Tokens of a text, a character at a time: not those that the tokenizer would make."""
    ids = [token for letter in text for token in world.text(letter)]
    assert ids != world.text(text)
    return ids


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("ending", "options", "more"),
    [
        ("\nObservation:", {"stop": ["\nObservation:"]}, "\nObservation: 5\nThought:"),
        ("", {"max_tokens": 9}, " and more"),
        ("<|im_end|>", {}, "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n"),
        ("", {"max_tokens": 9}, ""),
    ],
    ids=["stop string", "length", "end token written out", "nothing new"],
)
async def test_what_was_sampled_goes_on_token_for_token(
    make_world: MakeWorld, ending: str, options: dict[str, Any], more: str
) -> None:
    async with make_world("x") as world:
        answer = spelled(world, "Thinking.") + world.text(ending)
        world.upstreams["w0"] = ScriptedUpstream([answer, world.text("Done.")])
        await world.stop()
        await world.start()
        session = await world.open()
        text = await complete(world, session, "Question: a?\n", **options)
        assert text == "Thinking."
        assert await complete(world, session, f"Question: a?\n{text}{more}") == "Done."
        behind = world.text(more.removeprefix(ending))
        assert asked(world)[1] == [*world.text("Question: a?\n"), *answer, *behind]
        assert link(world, session, 1) == JOINED
        check_store(world, session)


@pytest.mark.anyio
async def test_an_end_token_that_the_client_leaves_out_is_left_out(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        answer = spelled(world, "Thinking.")
        world.upstreams["w0"] = ScriptedUpstream([[*answer, *world.text("<|im_end|>")], world.text("Done.")])
        await world.stop()
        await world.start()
        session = await world.open()
        assert await complete(world, session, "Q: a?\n") == "Thinking."
        await complete(world, session, "Q: a?\nThinking. Then?")
        assert asked(world)[1] == [*world.text("Q: a?\n"), *answer, *world.text(" Then?")]
        assert link(world, session, 1) == EDITED
        check_store(world, session)


@pytest.mark.anyio
@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "after a restart"])
async def test_the_longest_beginning_is_continued(make_world: MakeWorld, restarted: bool) -> None:
    async with make_world(" one", " two", " three", " four") as world:
        session = await world.open()
        first = await complete(world, session, "Count:")
        second = await complete(world, session, f"Count:{first},")
        if restarted:
            await world.stop()
            await world.start()
        assert await complete(world, session, f"Count:{first},{second},") == " three"
        assert [link(world, session, ordinal) for ordinal in range(3)] == [("none", None), JOINED, JOINED]
        assert world.calls(session)[2].parent_call_id == world.calls(session)[1].id
        ids = [*asked(world)[2], *world.text(" three"), *world.text(",")]
        assert await complete(world, session, ids) == " four"
        assert (asked(world)[3], link(world, session, 3)) == (ids, JOINED)
        check_store(world, session)


@pytest.mark.anyio
async def test_either_sibling_is_continued(make_world: MakeWorld) -> None:
    async with make_world(" one", " two", " three", " four") as world:
        session = await world.open()
        await complete(world, session, "Say:", n=2)
        for text in (" one", " two"):
            await complete(world, session, f"Say:{text}.")
        parents = [call.parent_call_id for call in world.calls(session)]
        assert sorted(map(str, parents[2:])) == sorted(call.id for call in world.calls(session)[:2])
        check_store(world, session)


@pytest.mark.anyio
async def test_other_prompts_begin_anew(make_world: MakeWorld) -> None:
    async with make_world(" one") as world:
        session = await world.open()
        for prompt in ("Say:", "Say:", "Say: on", "Tell:", world.text("Tell:"), "Say: two"):
            await complete(world, session, prompt)
        links = [link(world, session, ordinal) for ordinal in range(6)]
        assert links == [("none", None), ("none", None), *[NEW_ROOT] * 4]
        assert asked(world)[2] == world.text("Say: on")
        check_store(world, session)


@pytest.mark.anyio
async def test_a_session_that_keeps_to_the_template_tokenises_everything(make_world: MakeWorld) -> None:
    async with make_world("x") as world:
        world.upstreams["w0"] = ScriptedUpstream([spelled(world, "Thinking.")])
        await world.stop()
        await world.start()
        session = await world.open(history="template")
        await complete(world, session, "Q:")
        await complete(world, session, "Q:Thinking. Then?")
        assert (asked(world)[1], link(world, session, 1)) == (world.text("Q:Thinking. Then?"), NEW_ROOT)


@pytest.mark.anyio
async def test_conversations_and_raw_prompts_know_each_other_by_tokens_alone(make_world: MakeWorld) -> None:
    async with make_world("Hello.<|im_end|>") as world:
        session = await world.open()
        await world.chat(session.key, [{"role": "user", "content": "Hi"}])
        await complete(world, session, "Hi")
        assert link(world, session, 1) == NEW_ROOT
        whole = world.language.renderer.written([*asked(world)[0], *world.text("Hello.<|im_end|>")]).decode()
        await complete(world, session, f"{whole}\n<|im_start|>user\nAnd?<|im_end|>\n")
        assert (link(world, session, 2), world.calls(session)[2].parent_call_id) == (
            JOINED,
            world.calls(session)[0].id,
        )
        history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
        await world.chat(session.key, [*history, {"role": "user", "content": "So?"}])
        assert world.calls(session)[3].parent_call_id == world.calls(session)[0].id
        check_store(world, session)


def test_digests_tell_texts_from_ids_and_from_conversations() -> None:
    digests = [raw_chain("[1,2]"), raw_chain((1, 2)), raw_chain((12,)), raw_chain("1")]
    assert len({digest for (digest,) in digests}) == 4
    assert raw_chain([1, 2]) == raw_chain((1, 2))


def grown(language: PolicyLanguage, prompt: list[int], answer: list[int]) -> Forest:
    """A forest of one call."""
    forest = Forest("session")
    segment, _ = forest.add_prompt(prompt, None)
    forest.add_completion("call", segment.id, answer, [0.0] * len(answer), "digest")
    return forest


def test_a_text_is_not_cut_inside_a_character(language: PolicyLanguage) -> None:
    renderer = language.renderer
    party = renderer.encode("🎉")
    assert len(party) > 1
    forest = grown(language, renderer.encode("Say "), party[:1])
    prompt = RawPrompts(language).prompt(forest, (), ModelRequest("m", (), prompt="Say 🎉!"), "keep")
    assert renderer.written(prompt.ids).decode() == "Say 🎉!"
    assert prompt.ids == renderer.encode("Say 🎉!")


def test_an_empty_prompt_is_refused(language: PolicyLanguage) -> None:
    with pytest.raises(RequestProblem, match="no tokens"):
        RawPrompts(language).prompt(Forest("session"), (), ModelRequest("m", (), prompt=()), "keep")


def policy_with(folder: Path, *, add_bos: bool | None, template: bool) -> PolicyLanguage:
    """The policy's folder with a token for beginnings of texts, which the tokenizer or its configuration
    adds.
    """
    tokenizer = Tokenizer.from_file(str(POLICY / "tokenizer.json"))
    bos = tokenizer.token_to_id("<|endoftext|>")
    if template:
        post = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", bos)]
        )
        tokenizer.post_processor = post
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "bos_token": {"content": "<|endoftext|>"}}
    config |= {} if add_bos is None else {"add_bos_token": add_bos}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text((POLICY / "chat_template.jinja").read_text())
    return PolicyLanguage.of_policy(folder)


@pytest.mark.parametrize(
    ("add_bos", "template", "added"),
    [(None, False, False), (None, True, True), (True, False, True), (False, True, False), (True, True, True)],
)
def test_a_text_begins_as_the_tokenizer_s_configuration_says(
    tmp_path: Path, add_bos: bool | None, template: bool, added: bool
) -> None:
    language = policy_with(tmp_path, add_bos=add_bos, template=template)
    renderer = language.renderer
    assert isinstance(renderer, TemplateRenderer)
    bos = renderer.encode("<|endoftext|>")
    assert renderer.opening("One") == (tuple(bos) if added else ())
    assert renderer.opening("<|endoftext|>One") == ()

    raw, said = RawPrompts(language), renderer.encode("One")
    ids = raw.prompt(Forest("session"), (), ModelRequest("m", (), prompt="One"), "keep").ids
    assert ids == [*(bos if added else []), *said]
    assert raw.prompt(Forest("session"), (), ModelRequest("m", (), prompt=tuple(said)), "keep").ids == said

    answer = [token for letter in " two" for token in renderer.encode(letter)]
    continued = raw.prompt(
        grown(language, ids, answer), (), ModelRequest("m", (), prompt="One two three"), "keep"
    )
    assert (continued.ids, continued.broken) == ([*ids, *answer, *renderer.encode(" three")], None)
