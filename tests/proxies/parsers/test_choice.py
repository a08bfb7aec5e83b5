"""The parser of a policy is the one that reads what its template writes; others are refused with the remedy."""

import logging
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, trainers

from harnessgym.errors import ConfigError, PolicyError, UpstreamError
from harnessgym.message import Message, ToolCall
from harnessgym.registry import load
from proxies.language import PolicyLanguage
from proxies.parsers.choice import choose, grammar_of
from proxies.parsers.tagged import TaggedParser
from proxies.renderers.template import TemplateRenderer
from tests.proxies.parsers.families import FAMILIES, Family, renderer, tokenizer
from tests.proxies.parsers.turns import FIND, said

BY_NAME = {family.name: family for family in FAMILIES}
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def plain(name: str) -> TemplateRenderer:
    """A template without tool calls, with the tokenizer of a family."""
    family = BY_NAME[name]
    return TemplateRenderer(tokenizer(family), PLAIN, {"eos_token": family.tokens[0]})


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_grammar_is_the_one_that_the_template_writes(family: Family) -> None:
    assert grammar_of(renderer(family)) == family.grammar
    for name in ("auto", family.grammar):
        choice = choose(renderer(family), name, "policy")
        assert (choice.kind, choice.no_tools) == (load("parser", family.grammar), "")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_policys_language_reads_what_it_writes(family: Family, tmp_path: Path) -> None:
    language = PolicyLanguage.of_policy(family.write(tmp_path), renderer="template")
    turn = Message("assistant", "", tool_calls=(FIND,))
    try:
        ids = language.write(turn)
    except UpstreamError:
        # The prompt opens reasoning that the template does not write in a turn without any.
        assert family.name in ("glm-4.5", "glm-5", "minimax-m2", "deepseek-v3")
        return
    assert said(language.read(ids)) == said(turn)


def test_texts_that_look_like_values_can_be_written(tmp_path: Path) -> None:
    language = PolicyLanguage.of_policy(BY_NAME["qwen3-coder"].write(tmp_path))
    call = ToolCall("a", "find", '{"name": "3", "count": 3, "deep": {"of": "3"}}')
    ids = language.write(Message("assistant", "", tool_calls=(call,)))
    assert "\n3\n" in language.renderer.written(ids).decode()


def test_a_parser_that_does_not_read_the_template_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"those of 'hermes'\. Use parser 'hermes' or 'auto'"):
        choose(renderer(BY_NAME["qwen3"]), "qwen3_coder", "policy")
    with pytest.raises(PolicyError, match="those of 'llama3'"):
        choose(renderer(BY_NAME["llama-3.2"]), "pythonic", "policy")


def test_a_parser_whose_tags_nobody_knows_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"neither its chat template nor its tokenizer has \[TOOL_CALLS\]"):
        choose(plain("qwen3"), "mistral", "policy")
    with pytest.raises(PolicyError, match="has <arg_key>"):
        choose(plain("qwen3"), "glm", "policy")


def test_a_named_parser_may_know_what_the_template_does_not_write() -> None:
    assert choose(plain("qwen3"), "hermes", "policy").kind is load("parser", "hermes")
    assert choose(plain("qwen3"), "pythonic", "policy").kind is load("parser", "pythonic")
    assert choose(plain("qwen3"), "proxies.parsers.hermes:HermesParser", "policy").no_tools == ""


@pytest.mark.parametrize(
    ("name", "grammar"),
    [("qwen3", "hermes"), ("glm-4.5", "glm"), ("mistral-v3", "mistral"), ("gpt-oss", "harmony")],
)
def test_without_calls_in_the_template_the_tokenizer_decides(
    name: str, grammar: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert choose(plain(name), "auto", "policy").kind is load("parser", grammar)
    assert "writes no tool calls" in caplog.text


def test_a_policy_without_a_grammar_has_no_tools() -> None:
    choice = choose(plain("llama-3.1"), "auto", "policy")
    assert choice.kind is TaggedParser
    assert "The chat template of policy writes no tool calls" in choice.no_tools
    assert "name the parser" in choice.no_tools


def test_an_unknown_parser_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no parser named 'qwen'"):
        PolicyLanguage.of_policy(BY_NAME["qwen3"].write(tmp_path), "qwen")


def test_a_policy_of_another_grammar_is_read_from_its_folder(tmp_path: Path) -> None:
    shutil.copytree(BY_NAME["kimi-k2"].write(tmp_path / "a"), tmp_path / "b")
    language = PolicyLanguage.of_policy(tmp_path / "b")
    ids = language.renderer.encode(
        "Hi.<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b:3"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    )
    assert said(language.read(ids)) == ("Hi.", "", [("a.b", {})])


def test_the_tags_around_reasoning_are_those_that_the_policy_knows() -> None:
    kind = load("parser", "mistral")
    assert kind.own_think[0] == "[THINK]"
    of_mistral = choose(renderer(BY_NAME["mistral-v13"]), "auto", "policy")
    assert of_mistral.options == {"think": ("[THINK]", "[/THINK]")}
    thinking = BY_NAME["mistral-v13"].source.replace(
        "{{- message.content }}", "<think>\n{{- message.content }}"
    )
    family = BY_NAME["lfm2"]
    other = TemplateRenderer(tokenizer(family), thinking, {"eos_token": family.tokens[0]})
    chosen = choose(other, "auto", "policy")
    assert chosen.kind is kind
    assert chosen.options == {"think": ("<think>", "</think>")}


def test_gemma_is_read_with_a_vocabulary_of_characters() -> None:
    family = BY_NAME["gemma4"]
    characters = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    characters.normalizer = normalizers.Replace(" ", "\u2581")
    characters.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", *family.tokens], show_progress=False
    )
    characters.train_from_iterator(
        [family.source, family.source.replace(" ", "\u2581"), FIND.arguments], trainer
    )
    roles = {"eos_token": family.tokens[0], "bos_token": family.tokens[-1]}
    of_gemma = TemplateRenderer(characters, family.source, roles)
    chosen = choose(of_gemma, "auto", "policy")
    assert chosen.kind is load("parser", "gemma")
    turn = Message("assistant", "", reasoning="Let me look.", tool_calls=(FIND,))
    ids = of_gemma.written_turn(turn)
    assert ids is not None
    parser = chosen.kind(
        of_gemma.table, call_prefix="call_x_", stop_token_ids=of_gemma.stop_token_ids, **chosen.options
    )
    for token in ids:
        parser.feed([token])
    assert said(parser.finish()) == said(turn)
