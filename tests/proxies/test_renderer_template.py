import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models

from harnessgym.errors import PolicyError
from harnessgym.message import Message, ToolCall, ToolSpec
from proxies.dialect import RequestProblem
from proxies.parsers.hermes import HermesParser
from proxies.renderers.template import TemplateRenderer
from tests.proxies.test_parser_detokenizer import character_tokenizer

POLICY = Path(__file__).parents[2] / "environments" / "lookup" / "policy"
TOOLS = (ToolSpec("find", "Id of an item.", {"type": "object", "properties": {"name": {"type": "string"}}}),)
ASKED = (Message("system", "Use the tools."), Message("user", "What is the price?"))
CALL = '<tool_call>\n{"name": "find", "arguments": {"name": "red lamp"}}\n</tool_call>'

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    '{% for c in m.tool_calls or [] %}{{ \'\n<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": '
    "' }}"
    "{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRIPPING = (
    # as Qwen3 does it: reasoning is shown behind the last question only, where a turn without it gets an
    # empty block
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = "
    "loop.index0 %}{% endif %}"
    "{% endfor %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or m.reasoning_content) %}"
    "{{ '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}{{ m.content + "
    "'<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS_LAST = (
    # as Mistral does it: the tools stand before the last question and move on with the next
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = "
    "loop.index0 %}{% endif %}"
    "{% endfor %}{% for m in messages %}{% if tools and loop.index0 == ns.last %}{{ tools | tojson }}{% "
    "endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
COUNTING = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' + loop.index|string }}"
    "{{ '\n' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ENDLESS = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
REMINDING = CHATML.replace(
    "{% if add", "{% if tools and add_generation_prompt %}{{ tools[0].function.name }}{% endif %}{% if add"
)


def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(POLICY / "tokenizer.json"))


def renderer(template: str) -> TemplateRenderer:
    return TemplateRenderer(tokenizer(), template, {"eos_token": "<|im_end|>"})


def sample(r: TemplateRenderer, turn: str) -> list[int]:
    return list(r.tokenizer.encode(turn, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def shipped() -> TemplateRenderer:
    return TemplateRenderer.from_folder(POLICY)


def test_prompt_ends_with_the_generation_prompt(shipped: TemplateRenderer) -> None:
    ids = list(shipped.render(ASKED, TOOLS))
    assert shipped.decode(ids).endswith(
        "<|im_start|>user\nWhat is the price?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert shipped.stop_token_ids == (shipped.tokenizer.token_to_id("<|im_end|>"),)
    assert not shipped.opens_reasoning


def of_characters() -> Tokenizer:
    """A vocabulary that falls back to bytes, with the control tokens of ChatML."""
    made = character_tokenizer()
    made.add_special_tokens([AddedToken(each, normalized=False) for each in ("<|im_start|>", "<|im_end|>")])
    return made


@pytest.mark.parametrize(
    ("template", "made"),
    [((POLICY / "chat_template.jinja").read_text(), tokenizer), (CHATML, tokenizer), (CHATML, of_characters)],
    ids=["shipped", "chatml", "of characters"],
)
def test_a_canonical_continuation_is_what_the_template_writes(
    template: str, made: Callable[[], Tokenizer]
) -> None:
    r = TemplateRenderer(made(), template, {"eos_token": "<|im_end|>"})
    conversation, ids = list(ASKED), list(r.render(ASKED, TOOLS))
    turns = [
        (
            f"Looking.\n{CALL}\n{CALL}",
            [Message("tool", "Q7", tool_call_id="x0"), Message("tool", "Q8", tool_call_id="x1")],
        ),
        (f"Again.\n{CALL}", [Message("tool", "ünknown", tool_call_id="x0"), Message("user", "Careful.\n")]),
        ("47", [Message("user", "<|im_end|> and?"), Message("system", "Be quick.")]),
        ("48", [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]),
    ]
    for turn, new in turns:
        sampled = sample(r, turn + "<|im_end|>")
        parser = HermesParser(r.table, call_prefix="x", stop_token_ids=r.stop_token_ids)
        parser.feed(sampled)
        added = list(r.extend(ids + sampled, new, TOOLS))
        ids += sampled + added
        conversation += [parser.finish(), *new]
        assert ids == r.render(conversation, TOOLS)


def test_sampled_reasoning_stays_where_the_template_would_strip_it() -> None:
    r = renderer(STRIPPING)
    ids = list(r.render(ASKED, ()))
    sampled = sample(r, "<think>\nhm\n</think>\n\n47<|im_end|>")
    added = list(r.extend(ids + sampled, [Message("user", "Sure?")], ()))
    assert r.decode(added) == "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    stripped = r.render([*ASKED, Message("assistant", "47", reasoning="hm"), Message("user", "Sure?")], ())
    assert ids + sampled + added != stripped


def test_a_turn_that_was_cut_off_is_not_continued(shipped: TemplateRenderer) -> None:
    ids = list(shipped.render(ASKED, TOOLS))
    new = [Message("user", "Go on.")]
    assert shipped.extend(ids + sample(shipped, "4"), new, TOOLS) is None
    assert shipped.extend([], new, TOOLS) is None
    assert shipped.extend(ids + sample(shipped, "4<|im_end|>"), [], TOOLS) is None
    assert shipped.extend(ids + sample(shipped, "4<|im_end|>"), new, TOOLS) is not None


@pytest.mark.parametrize(
    "template", [TOOLS_LAST, COUNTING, ENDLESS], ids=["moves the tools", "counts turns", "no end of turn"]
)
def test_a_template_that_looks_back_is_not_continued(template: str) -> None:
    r = renderer(template)
    ids = list(r.render(ASKED, TOOLS)) + sample(r, "47<|im_end|>")
    assert r.extend(ids, [Message("user", "Sure?")], TOOLS) is None


def test_a_suffix_that_shows_tools_is_rendered_with_them() -> None:
    r = renderer(REMINDING)
    ids = list(r.render(ASKED, TOOLS)) + sample(r, "47<|im_end|>")
    for text in ("Sure?", "Really?"):
        added = list(r.extend(ids, [Message("user", text)], TOOLS))
        assert r.decode(added) == f"\n<|im_start|>user\n{text}<|im_end|>\nfind<|im_start|>assistant\n"


def test_an_end_of_turn_that_swallows_whitespace_continues_as_a_whole_prompt_would() -> None:
    tokens = tokenizer()
    raw = json.loads(tokens.to_str())
    next(token for token in raw["added_tokens"] if token["content"] == "<|im_end|>")["rstrip"] = True
    r = TemplateRenderer(Tokenizer.from_str(json.dumps(raw)), CHATML, {"eos_token": "<|im_end|>"})
    conversation = [*ASKED, Message("assistant", "47"), Message("user", "Sure?")]
    sampled = sample(r, "47<|im_end|>")
    added = list(r.extend(list(r.render(ASKED, ())) + sampled, [Message("user", "Sure?")], ()))
    assert list(r.render(ASKED, ())) + sampled + added == r.render(conversation, ())


def test_a_template_that_refuses_is_the_clients_problem() -> None:
    r = renderer(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    )
    with pytest.raises(RequestProblem, match="no system") as caught:
        r.render(ASKED, ())
    assert caught.value.problem.kind == "unsupported"


def test_templates_written_for_transformers_render() -> None:
    r = renderer(
        "{{ bos_token }}{{ strftime_now('%Y')|length }}{% for m in messages %}"
        "{% if m.content == 'skip' %}{% continue %}{% endif %}"
        "{% generation %}{{ {'<': m.content, 'é': tools} | tojson }}{% endgeneration %}{% endfor %}"
    )
    r.tokens["bos_token"] = "<|endoftext|>"
    assert r.text([Message("user", "skip"), Message("user", "ü")]) == '<|endoftext|>4{"<": "ü", "é": null}'


def test_a_prompt_that_opens_the_reasoning_says_so() -> None:
    assert renderer(CHATML.replace("assistant\n'", "assistant\n<think>\n'")).opens_reasoning


def test_arguments_that_are_no_json_reach_the_template_as_text(shipped: TemplateRenderer) -> None:
    odd = Message("assistant", "", tool_calls=(ToolCall("x", "find", "red"),))
    assert '"arguments": red}' in shipped.text([*ASKED, odd], TOOLS)


def test_the_template_may_stand_in_the_tokenizer_config(tmp_path: Path) -> None:
    shutil.copy(POLICY / "tokenizer.json", tmp_path)
    config = {
        "eos_token": {"content": "<|im_end|>"},
        "chat_template": [{"name": "default", "template": CHATML}],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    r = TemplateRenderer.from_folder(tmp_path)
    assert r.stop_token_ids == (0, 2)
    assert r.text(ASKED[1:]) == "<|im_start|>user\nWhat is the price?<|im_end|>\n<|im_start|>assistant\n"


def test_unusable_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=str(tmp_path)):
        TemplateRenderer.from_folder(tmp_path)
    shutil.copy(POLICY / "tokenizer.json", tmp_path)
    with pytest.raises(PolicyError, match="no chat template"):
        TemplateRenderer.from_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(PolicyError, match="does not compile"):
        TemplateRenderer.from_folder(tmp_path)


def test_only_byte_level_tokenizers_are_taken() -> None:
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    words.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    with pytest.raises(PolicyError, match="byte-level"):
        TemplateRenderer(words, CHATML)


WRITING_IDS = CHATML.replace(
    "{{ '<|im_start|>' + m.role + '\n' + m.content }}",
    "{{ '<|im_start|>' + m.role + ' ' + (m.tool_call_id or '') + '\n' + m.content }}",
)
DUMPING_CALLS = CHATML.replace("{{ c.function.arguments | tojson }}", "{{ c | tojson }}")


@pytest.mark.parametrize(
    ("template", "written"), [(CHATML, False), (WRITING_IDS, True), (DUMPING_CALLS, False)]
)
def test_results_go_on_whatever_the_ids_of_calls(template: str, written: bool) -> None:
    """A template that does not write ids is rendered with the same ones, so its settings are known."""
    r = renderer(template)
    ids = list(r.render(ASKED, TOOLS).whole()) + sample(r, CALL + "<|im_end|>")
    found = set()
    for call in ("call_1", "call_2", "toolu_01AbC"):
        results = [Message("tool", "12", tool_call_id=call, name="find"), Message("user", "And now?")]
        suffix = r.extend(ids, results, TOOLS)
        assert suffix is not None
        text = r.decode(list(suffix))
        assert (call in text) == written
        found.add(text.replace(call, ""))
    assert len(found) == 1
    assert (len(r._known_settings) > 4) == (template != CHATML)
