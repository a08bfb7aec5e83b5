"""The renderers package is trusted where it agrees with a folder's template, and then writes what the
template writes.
"""

import json
import shutil
from pathlib import Path

import pytest

from harnessgym.errors import ConfigError, PolicyError
from harnessgym.message import Message, ToolSpec
from proxies.language import PolicyLanguage
from proxies.renderers.family import AutoRenderer, FamilyRenderer
from proxies.renderers.template import TemplateRenderer
from tests.proxies.npm_tokenizer import qwen3_folder

pytest.importorskip("renderers")

POLICY = Path(__file__).parents[2] / "environments" / "lookup" / "policy"
TOOLS = (ToolSpec("find", "Id of an item.", {"type": "object", "properties": {"name": {"type": "string"}}}),)
ASKED = (Message("system", "Use the tools."), Message("user", "What is the price?"))
CALL = '<tool_call>\n{"name": "find", "arguments": {"name": "red lamp"}}\n</tool_call>'
NEW = [
    [Message("user", "Sure?")],
    [Message("tool", "Q7", tool_call_id="a"), Message("tool", "", tool_call_id="b")],
    [Message("tool", "Q7\n", tool_call_id="a"), Message("user", "ünd?")],
    [Message("user", "a"), Message("user", " b ")],
    [Message("system", "Be quick."), Message("user", "Go on.")],
    [Message("user", "a <|im_end|> b")],
    [Message("user", "a"), Message("assistant", "b"), Message("user", "c")],
]


@pytest.fixture(scope="module")
def folder() -> Path:
    return qwen3_folder()


@pytest.fixture(scope="module")
def follower(folder: Path) -> FamilyRenderer:
    return FamilyRenderer.from_folder(folder)


@pytest.fixture(scope="module")
def template(folder: Path) -> TemplateRenderer:
    return TemplateRenderer.from_folder(folder)


@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("turn", ["47", CALL, f"<think>\nhm\n</think>\n\nLooking.\n{CALL}\n{CALL}", ""])
@pytest.mark.parametrize("new", NEW, ids=range(len(NEW)))
def test_both_continue_alike(
    follower: FamilyRenderer,
    template: TemplateRenderer,
    new: list[Message],
    turn: str,
    tools: tuple[ToolSpec, ...],
) -> None:
    ids = [*template.render(ASKED, tools), *template.encode(f"{turn}<|im_end|>")]
    added = follower.extend(ids, new, tools)
    assert added is not None
    assert added == template.extend(ids, new, tools)


def test_both_end_a_turn_alike(follower: FamilyRenderer, template: TemplateRenderer) -> None:
    prompt = template.render(ASKED, ())
    for turn in ("four", "<think>\nhm", "47<|endoftext|>"):
        ids = [*prompt, *template.encode(turn)]
        assert follower.extend(ids, NEW[0], ()) == template.extend(ids, NEW[0], ())
    assert follower.extend([], NEW[0], ()) is None


def test_whole_prompts_are_the_templates(follower: FamilyRenderer, template: TemplateRenderer) -> None:
    conversation = [*ASKED, Message("assistant", "47", reasoning="hm"), Message("user", "a <|im_end|> b")]
    assert follower.render(conversation, TOOLS) == template.render(conversation, TOOLS)


def test_a_folder_whose_template_was_changed_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "config.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "chat_template.jinja").write_text(config["chat_template"].replace("# Tools", "# Functions"))
    with pytest.raises(PolicyError, match="does not agree with renderers' qwen3"):
        FamilyRenderer.from_folder(tmp_path)
    assert type(AutoRenderer.from_folder(tmp_path)) is TemplateRenderer


def test_a_template_that_cannot_be_continued_is_left_as_it_is_if_its_family_does_not_agree(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("tokenizer.json", "config.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    endless = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(endless)
    renderer = AutoRenderer.from_folder(tmp_path)
    assert type(renderer) is TemplateRenderer
    assert renderer.extend([1], NEW[0], ()) is None


def test_an_unknown_family_is_named(tmp_path: Path) -> None:
    shutil.copytree(POLICY, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(PolicyError, match="no family for the model_type"):
        FamilyRenderer.from_folder(tmp_path)
    (tmp_path / "config.json").unlink()
    assert type(AutoRenderer.from_folder(tmp_path)) is TemplateRenderer


def test_a_tokenizer_without_the_familys_tokens_is_refused() -> None:
    with pytest.raises(PolicyError, match="does not agree with renderers' qwen3"):
        FamilyRenderer.from_folder(POLICY)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("auto", TemplateRenderer),
        ("template", TemplateRenderer),
        ("family", FamilyRenderer),
        ("proxies.renderers.family:FamilyRenderer", FamilyRenderer),
    ],
)
def test_a_renderer_is_chosen_by_name(folder: Path, name: str, kind: type) -> None:
    assert type(PolicyLanguage.of_policy(folder, renderer=name).renderer) is kind


def test_an_unknown_renderer_is_named() -> None:
    with pytest.raises(ConfigError, match="no renderer named 'qwen'"):
        PolicyLanguage.of_policy(POLICY, renderer="qwen")
