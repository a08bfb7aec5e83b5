"""The shipped policy folder: its template continues what it rendered before, and other tools can load it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from environments.lookup import LookupTasks
from environments.lookup.protocol import CATALOG_FILE, SYSTEM_PROMPT, TOOLS, Catalog
from harnessgym.task import Task

FOLDER = Path("environments/lookup/policy")
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
CONTENT = st.text(st.characters(codec="utf-8"), max_size=20)


@cache
def template() -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string((FOLDER / "chat_template.jinja").read_text())


def render(
    messages: list[dict[str, Any]], *, generate: bool = False, tools: list[dict[str, Any]] | None = None
) -> str:
    return template().render(
        messages=messages, tools=TOOLS if tools is None else tools, add_generation_prompt=generate
    )


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def call(tool: str, **arguments: str) -> dict[str, Any]:
    function = {"name": tool, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def solution(task: Task) -> list[dict[str, Any]]:
    catalog, item, kind = (
        Catalog.from_json(task.files[CATALOG_FILE]),
        task.metadata["item"],
        task.metadata["kind"],
    )
    return [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": task.instruction},
        call("find", name=item),
        {"role": "tool", "content": catalog.ids[item]},
        call(kind, id=catalog.ids[item]),
        {"role": "tool", "content": task.metadata["answer"]},
        {"role": "assistant", "content": task.metadata["answer"]},
    ]


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_turn_of_every_episode_extends_the_tokens_before_it(split: Any) -> None:
    for task in LookupTasks().tasks(split)[::7]:
        messages = solution(task)
        whole = encode(render(messages))
        assert len(whole) <= 200
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt, after = (
                    encode(render(messages[:index], generate=True)),
                    encode(render(messages[: index + 1])),
                )
                assert whole[: len(prompt)] == prompt
                assert after[: len(prompt)] == prompt
                assert TOKENIZER.decode(after[-2:], skip_special_tokens=False) == "<|im_end|>\n"
                assert whole[: len(after)] == after


@given(
    st.lists(st.tuples(st.sampled_from(["user", "tool", "assistant"]), CONTENT), min_size=1, max_size=6),
    CONTENT,
)
def test_a_generation_prompt_is_a_token_prefix_of_whatever_follows(
    history: list[tuple[str, str]], answer: str
) -> None:
    messages = [{"role": role, "content": content} for role, content in history]
    prompt = encode(render(messages, generate=True))
    assert encode(render([*messages, {"role": "assistant", "content": answer}]))[: len(prompt)] == prompt


@given(CONTENT)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert TOKENIZER.decode(encode(text), skip_special_tokens=False) == text


def test_rendering_to_the_character() -> None:
    messages = solution(LookupTasks().tasks("train")[0])
    item, id_, answer = (messages[index]["content"] for index in (1, 3, 6))
    name = messages[2]["tool_calls"][0]["function"]["arguments"]["name"]
    kind = messages[4]["tool_calls"][0]["function"]["name"]
    assert render(messages, generate=True) == (
        f"<|im_start|>system\n{SYSTEM_PROMPT}\nfind(name)\nprice(id)\nstock(id)\nweight(id)<|im_end|>\n"
        f"<|im_start|>user\n{item}<|im_end|>\n"
        f'<|im_start|>assistant\n<tool_call>\n{{"name": "find", "arguments": {{"name": "{name}"}}}}\n</tool_call><|im_end|>\n'
        f"<|im_start|>tool\n{id_}<|im_end|>\n"
        f'<|im_start|>assistant\n<tool_call>\n{{"name": "{kind}", "arguments": {{"id": "{id_}"}}}}\n</tool_call><|im_end|>\n'
        f"<|im_start|>tool\n{answer}<|im_end|>\n"
        f"<|im_start|>assistant\n{answer}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_forms_of_content_and_arguments_that_clients_send() -> None:
    whole = call("find", name="zor-min")
    as_text = call("find")
    as_text["tool_calls"][0]["function"]["arguments"] = '{"name": "zor-min"}'
    assert render([as_text]) == render([whole])
    assert render([{**whole, "content": ""}]) == render([whole])
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert render([{"role": "user", "content": parts}]) == render([{"role": "user", "content": "Hello"}])
    said = render([{**whole, "content": "Hm."}], tools=[])
    assert said.startswith("<|im_start|>assistant\nHm.\n<tool_call>\n{")
    two = render([{**whole, "tool_calls": whole["tool_calls"] * 2}], tools=[])
    assert "</tool_call>\n<tool_call>" in two
    assert render([{"role": "user", "content": "x"}], tools=[]) == "<|im_start|>user\nx<|im_end|>\n"
    umlaut = render([call("find", name='ö"<')], tools=[])
    assert '{"name": "ö\\"<"}' in umlaut


def test_tool_call_marks_are_single_visible_tokens() -> None:
    for mark in ("<tool_call>", "</tool_call>"):
        assert len(encode(mark)) == 1
        assert TOKENIZER.decode(encode(mark)) == mark
    assert TOKENIZER.decode(encode("<|im_start|>a<|im_end|>")) == "a"
    assert encode("a\n\n") == [*encode("a"), *encode("\n"), *encode("\n")]


def test_transformers_loads_the_folder_and_renders_the_same_tokens() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    assert tokenizer.eos_token == "<|im_end|>"
    messages = solution(LookupTasks().tasks("test")[3])[:4]
    theirs = tokenizer.apply_chat_template(messages, tools=TOOLS, add_generation_prompt=True, tokenize=False)
    assert theirs == render(messages, generate=True)
    assert tokenizer(theirs, add_special_tokens=False)["input_ids"] == encode(theirs)
    config = transformers.AutoConfig.from_pretrained(FOLDER)
    assert config.architectures == ["Qwen3ForCausalLM"]
    assert config.vocab_size == len(tokenizer) == TOKENIZER.get_vocab_size()
