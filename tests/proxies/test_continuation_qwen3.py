"""Continuation with the tokenizer and template of Qwen3, which strips the reasoning of earlier turns."""

from dataclasses import replace

import pytest

from harnessgym.message import Message
from proxies.language import PolicyLanguage
from tests.proxies.npm_tokenizer import qwen3_folder
from tests.proxies.talk import Json, Talk, replay, result, system, tool, user

END = "<|im_end|>"
TOOLS = [tool("find", "name"), tool("price", "id")]
CALL = '<tool_call>\n{"name": "find", "arguments": {"name":  "red lamp"}}\n</tool_call>'
ASKED = [system("Use the tools."), user("What is the price?")]


@pytest.fixture(scope="module")
def language() -> PolicyLanguage:
    return PolicyLanguage.of_policy(qwen3_folder())


@pytest.fixture(params=["keep", "template"])
def history(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def thought(text: str, reasoning: str = "hm") -> str:
    return f"<think>\n{reasoning}\n</think>\n\n{text}"


def test_the_folder_is_read_as_qwen3(language: PolicyLanguage) -> None:
    assert language.stop_token_ids == (151643, 151645)
    talk = Talk(language)
    talk.call(ASKED, talk.encode(f"47{END}"), TOOLS)
    text = talk.text(talk.prompts[0].ids)
    assert text.startswith("<|im_start|>system\nUse the tools.\n\n# Tools\n\n")
    assert text.endswith("<|im_start|>user\nWhat is the price?<|im_end|>\n<|im_start|>assistant\n")


def test_a_tool_loop_is_one_row_in_both_modes(language: PolicyLanguage, history: str) -> None:
    talk = Talk(language, history)
    messages: list[Json] = list(ASKED)
    canonical = CALL.replace("  ", " ")
    for turn, answer in enumerate([f"{canonical}\n{canonical}", canonical, "47"]):
        said = talk.call(messages, talk.encode(thought(answer) + END), TOOLS)
        assert len(said.tool_calls) == answer.count("<tool_call>")
        messages += [replay(said), *(result(f"Q{turn}", call.id) for call in said.tool_calls)]
    assert [prompt.broken for prompt in talk.prompts] == [None] * 3
    assert [prompt.parent and prompt.parent.call_id for prompt in talk.prompts] == [None, "c0", "c1"]
    added = talk.text(talk.prompts[1].added)
    responses = "\n<tool_response>\nQ0\n</tool_response>" * 2
    assert added == f"\n<|im_start|>user{responses}<|im_end|>\n<|im_start|>assistant\n"


def test_a_new_question_strips_the_reasoning_under_template_only(
    language: PolicyLanguage, history: str
) -> None:
    talk = Talk(language, history)
    messages: list[Json] = list(ASKED)
    for _ in range(3):
        said = talk.call(messages, talk.encode(thought("47") + END), TOOLS)
        messages += [replay(said), user("Sure?")]
    breaks = [None if prompt.broken is None else prompt.broken.kind for prompt in talk.prompts]
    parents = [prompt.parent and prompt.parent.call_id for prompt in talk.prompts]
    last = talk.text(talk.prompts[-1].ids)
    if history == "keep":
        assert breaks == [None, None, None]
        assert parents == [None, "c0", "c1"]
        assert last.count("<think>\nhm\n</think>\n\n47<|im_end|>") == 2
    else:
        assert breaks == [None, "stripped_reasoning", "stripped_reasoning"]
        assert parents == [None, None, None]
        assert "<think>" not in last
        broken = talk.prompts[2].broken
        assert broken is not None
        assert broken.detail.startswith(
            "message 4 (assistant), compared with call c1: the template leaves the reasoning out\n"
        )
        assert "-<think>" in broken.detail
    assert len({id(leaf) for leaf in talk.forest.leaves()}) == (1 if history == "keep" else 3)


def test_template_continues_what_was_sampled_behind_the_question_it_strips_up_to(
    language: PolicyLanguage,
) -> None:
    """The fork is where the template strips; what comes behind it is continued again."""
    talk = Talk(language, "template")
    first = talk.call(ASKED, talk.encode(thought("47") + END), TOOLS)
    messages = [*ASKED, replay(first), user("Look it up.")]
    second = talk.call(messages, talk.encode(thought(CALL.replace("  ", " ")) + END), TOOLS)
    messages += [replay(second), result("Q7", second.tool_calls[0].id)]
    talk.call(messages, talk.encode(thought("48") + END), TOOLS)
    assert [prompt.parent and prompt.parent.call_id for prompt in talk.prompts] == [None, None, "c1"]
    assert talk.prompts[2].broken is None


@pytest.mark.parametrize("drop", ["reasoning_content", "nothing", "inline", "other field"])
def test_keep_holds_however_a_client_treats_the_reasoning(language: PolicyLanguage, drop: str) -> None:
    talk = Talk(language)
    said = replay(talk.call(ASKED, talk.encode(thought(f"Looking.\n{CALL}") + END), TOOLS))
    reasoning = said["reasoning_content"]
    if drop != "nothing":
        del said["reasoning_content"]
    if drop == "inline":
        said["content"] = f"<think>{reasoning}</think>\n{said['content']}"
    if drop == "other field":
        said["reasoning"] = f" {reasoning}\n"
    talk.call([*ASKED, said, result("Q7", "call_0_0")], talk.encode(f"47{END}"), TOOLS)
    assert talk.prompts[1].broken is None
    assert list(talk.prompts[1].ids) == [*talk.prompts[0].ids, *talk.sampled[0], *talk.prompts[1].added]


def test_sampled_tokens_that_are_no_canonical_bpe_are_kept(language: PolicyLanguage, history: str) -> None:
    talk = Talk(language, history)
    spelt = [token for letter in "the value" for token in talk.encode(letter)]
    assert spelt != talk.encode("the value")
    first = talk.call(ASKED, [*spelt, *talk.encode(END)], TOOLS)
    talk.call([*ASKED, replay(first), user("Sure?")], talk.encode(f"48{END}"), TOOLS)
    prompt = talk.prompts[1]
    if history == "keep":
        assert prompt.broken is None
        assert list(prompt.ids) == [*talk.prompts[0].ids, *spelt, *talk.encode(END), *prompt.added]
    else:
        assert prompt.parent is None
        assert prompt.broken is not None
        assert prompt.broken.kind == "bpe_drift"
        assert prompt.broken.detail.startswith("message 2 (assistant), compared with call c0: ")


def test_arguments_written_otherwise_are_kept_or_named(language: PolicyLanguage, history: str) -> None:
    talk = Talk(language, history)
    first = talk.call(ASKED, talk.encode(thought(CALL) + END), TOOLS)
    said = replay(first)
    said["tool_calls"][0]["function"]["arguments"] = '{"name":"red lamp"}'
    talk.call([*ASKED, said, result("Q7", "call_0_0")], talk.encode(f"47{END}"), TOOLS)
    broken = talk.prompts[1].broken
    if history == "keep":
        assert broken is None
    else:
        assert broken is not None
        assert broken.kind == "tool_reserialisation"


@pytest.mark.parametrize("end", ["<|endoftext|>", END])
def test_every_end_of_turn_is_continued(language: PolicyLanguage, end: str) -> None:
    talk = Talk(language)
    first = talk.call(ASKED, talk.encode("47" + end), TOOLS)
    assert first.content == "47"
    talk.call([*ASKED, replay(first), user("Sure?")], talk.encode(f"48{END}"), TOOLS)
    assert talk.prompts[1].broken is None
    text = talk.text(talk.prompts[1].ids)
    assert text.endswith(f"47{end}\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n")


def test_a_turn_that_was_cut_off_starts_a_branch(language: PolicyLanguage, history: str) -> None:
    talk = Talk(language, history)
    first = talk.call(ASKED, talk.encode(thought("four")), TOOLS, "length")
    talk.call([*ASKED, replay(first), user("Go on.")], talk.encode(f"48{END}"), TOOLS)
    prompt = talk.prompts[1]
    assert prompt.parent is None
    assert prompt.broken is not None
    assert prompt.broken.kind == ("length_cut" if history == "keep" else "stripped_reasoning")


@pytest.mark.parametrize("content", ["", None, "missing"])
def test_an_answer_without_content_is_continued(language: PolicyLanguage, content: str | None) -> None:
    talk = Talk(language)
    said = replay(talk.call(ASKED, talk.encode(thought(CALL) + END), TOOLS))
    if content == "missing":
        del said["content"]
    else:
        said["content"] = content
    talk.call([*ASKED, said, result("", "call_0_0")], talk.encode(f"47{END}"), TOOLS)
    assert talk.prompts[1].broken is None
    assert talk.prompts[1].parent is not None


def test_an_empty_answer_is_continued(language: PolicyLanguage) -> None:
    talk = Talk(language)
    talk.call(ASKED, talk.encode(END), TOOLS)
    talk.call([*ASKED, {"role": "assistant", "content": ""}, user("Hello?")], talk.encode(f"47{END}"), TOOLS)
    assert talk.prompts[1].parent is not None
    assert talk.prompts[1].broken is None


def test_quoted_control_tokens_are_text(language: PolicyLanguage) -> None:
    quote = "a<|im_end|>\n<|im_start|>assistant\nb<|endoftext|>"
    talk = Talk(language)
    first = talk.call([system(quote), user(quote)], talk.encode(thought(CALL) + END), TOOLS)
    talk.call(
        [system(quote), user(quote), replay(first), result(quote, "call_0_0")], talk.encode(f"47{END}"), TOOLS
    )
    for prompt in talk.prompts:
        assert quote in talk.text(prompt.added)
    assert talk.prompts[0].ids.count(151645) == 2
    assert talk.prompts[0].ids.count(151643) == 0
    assert talk.prompts[1].added.count(151644) == 2


def test_quoted_control_tokens_change_nothing_else(language: PolicyLanguage) -> None:
    plain = Message("user", "a <|im_end b |> <tool_call> c")
    renderer = language.renderer
    assert renderer.render([plain], ()) == renderer.encode(renderer.text([plain]))  # type: ignore[attr-defined]
    quoted = replace(plain, content=f"{plain.content}<|im_end|>")
    text = renderer.text([quoted])  # type: ignore[attr-defined]
    assert renderer.written(renderer.render([quoted], ())).decode() == text
    assert renderer.render([quoted], ()).count(151645) == renderer.encode(text).count(151645) - 1 == 1
