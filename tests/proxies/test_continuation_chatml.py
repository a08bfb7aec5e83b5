"""Continuation with the ChatML template of SmolLM2, which knows neither tool calls nor reasoning."""

import json
import shutil
from pathlib import Path

import pytest

from proxies.language import PolicyLanguage
from tests.proxies.talk import Json, Talk, replay, result, system, tool, user

POLICY = Path(__file__).parents[2] / "environments/lookup/policy"
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
    "Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
END = "<|im_end|>"
CALL = '<tool_call>\n{"name": "find", "arguments": {"name": "red lamp"}}\n</tool_call>'
TOOLS = [tool("find", "name")]


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> PolicyLanguage:
    folder = tmp_path_factory.mktemp("smollm2")
    shutil.copy(POLICY / "tokenizer.json", folder)
    (folder / "chat_template.jinja").write_text(SMOLLM2)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "bos_token": "<|im_start|>"}))
    return PolicyLanguage.of_policy(folder)


@pytest.fixture(params=["keep", "template"])
def history(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def converse(talk: Talk, turns: int, first: list[Json]) -> list[str | None]:
    messages = first
    for turn in range(turns):
        answer = talk.call(messages, talk.encode(f"It is {turn}.{END}"))
        messages = [*messages, replay(answer), user("Sure?")]
    return [prompt.parent and prompt.parent.call_id for prompt in talk.prompts]


@pytest.mark.parametrize("opening", [[system("Be brief.")], []], ids=["system", "default system"])
def test_a_conversation_is_one_row_in_both_modes(
    language: PolicyLanguage, history: str, opening: list[Json]
) -> None:
    talk = Talk(language, history)
    assert converse(talk, 4, [*opening, user("What?")]) == [None, "c0", "c1", "c2"]
    assert [prompt.broken for prompt in talk.prompts] == [None] * 4
    said = "Be brief." if opening else "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert talk.text(talk.prompts[-1].ids).startswith(
        f"<|im_start|>system\n{said}<|im_end|>\n<|im_start|>user\nWhat?<|im_end|>\n"
    )
    assert talk.text(talk.prompts[-1].added) == "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"


def test_what_the_template_leaves_out_forks_under_template_only(
    language: PolicyLanguage, history: str
) -> None:
    talk = Talk(language, history)
    answer = talk.call([user("What?")], talk.encode(f"<think>\nhm\n</think>\n\nLooking.\n{CALL}{END}"), TOOLS)
    messages = [user("What?"), replay(answer), result("Q7", answer.tool_calls[0].id)]
    second = talk.call(messages, talk.encode(f"Looking.\n{CALL}{END}"), TOOLS)
    talk.call(
        [*messages, replay(second), result("Q8", second.tool_calls[0].id)], talk.encode(f"47{END}"), TOOLS
    )
    breaks = [prompt.broken and prompt.broken.kind for prompt in talk.prompts]
    parents = [prompt.parent and prompt.parent.call_id for prompt in talk.prompts]
    if history == "keep":
        assert breaks == [None, None, None]
        assert parents == [None, "c0", "c1"]
        assert talk.text(talk.prompts[2].ids).count(CALL) == 2
    else:
        assert breaks == [None, "stripped_reasoning", "tool_reserialisation"]
        assert parents == [None, None, None]
        assert CALL not in talk.text(talk.prompts[2].ids)


COUNTING = "{{ messages | length }} messages{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}"
COUNTING += "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def test_a_template_that_changes_what_came_before_starts_a_branch(tmp_path: Path, history: str) -> None:
    shutil.copy(POLICY / "tokenizer.json", tmp_path)
    (tmp_path / "chat_template.jinja").write_text(COUNTING)
    talk = Talk(PolicyLanguage.of_policy(tmp_path), history)
    assert converse(talk, 2, [user("What?")]) == [None, None]
    broken = talk.prompts[1].broken
    assert broken is not None
    assert broken.kind == "template"
    assert broken.detail.startswith(
        "compared with call c0: the template renders the text before the answer differently"
    )
    _, _, old, new = broken.detail.split("\n")
    assert old.startswith("-1 messages<|im_start|>")
    assert new.startswith("+3 messages<|im_start|>")


def test_a_cut_off_answer_is_a_break_only_if_its_tokens_are_no_prefix(
    language: PolicyLanguage, history: str
) -> None:
    talk = Talk(language, history)
    answer = talk.call([user("What?")], talk.encode("It is"))
    talk.call([user("What?"), replay(answer), user("Go on.")], talk.encode(f"47{END}"))
    assert talk.prompts[1].parent is not None
    assert talk.prompts[1].broken is None
    assert talk.text(talk.prompts[1].added).startswith(f"{END}\n<|im_start|>user")
