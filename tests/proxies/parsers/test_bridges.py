"""What is appended to a sampled turn is what the template writes behind it, in every family."""

from pathlib import Path

import pytest

from harnessgym.message import Message, ToolCall
from proxies.language import PolicyLanguage
from proxies.renderers.family import FamilyRenderer
from proxies.renderers.template import TemplateRenderer
from tests.proxies.parsers.families import FAMILIES, TOOL, Family, renderer
from tests.proxies.parsers.turns import FIND, written

ASKED = [Message("user", "What is it?")]
SECOND = ToolCall("call_x_1", "find", '{"name": "blue"}')
TURNS = {
    "result": ((FIND,), [Message("tool", "A lamp.", tool_call_id="call_x_0")]),
    "results": (
        (FIND, SECOND),
        [Message("tool", text, tool_call_id=f"call_x_{at}") for at, text in enumerate(("A lamp.", ""))],
    ),
    "question": ((), [Message("user", "And?")]),
}
REBUILT = {
    ("deepseek-v3", "result"), ("deepseek-v3", "results"), ("glm-5", "result"), ("glm-5", "results"),
    ("glm-5", "question"), ("functiongemma", "question"), ("gpt-oss", "result"), ("gpt-oss", "question"),
}  # fmt: skip
"""Where the template alone cannot be continued: such prompts are rendered whole."""
CASES = [(family, kind) for family in FAMILIES for kind in TURNS if family.several or kind != "results"]


@pytest.mark.parametrize(("family", "kind"), CASES, ids=[f"{family.name}: {kind}" for family, kind in CASES])
def test_a_continuation_is_what_the_template_writes(family: Family, kind: str, tmp_path: Path) -> None:
    language = PolicyLanguage.of_policy(family.write(tmp_path))
    assert isinstance(language.renderer, TemplateRenderer)
    calls, new = TURNS[kind]
    turn = Message(
        "assistant", "" if calls else "Hi.", reasoning="hm" if family.reasons else "", tool_calls=calls
    )
    sampled = written(family, turn)[0]
    prompt = list(language.renderer.render(ASKED, (TOOL,)))
    whole = list(language.renderer.render([*ASKED, turn, *new], (TOOL,)))
    added = language.renderer.extend([*prompt, *sampled], new, (TOOL,))
    if family.name == "glm-4.5":
        # It has no end of turn: the next turn's role, which is sampled, is one.
        assert isinstance(language.renderer, FamilyRenderer)
        added = language.renderer.extend([*prompt, *sampled, language.stop_token_ids[0]], new, (TOOL,))
        assert added is not None
        assert whole[-len(added) + 1 :] == list(added)[1:]
    elif (family.name, kind) in REBUILT:
        assert added is None
    else:
        assert added is not None
        assert whole[-len(added) :] == list(added)
        if calls:
            # Reasoning before a result stays, so nothing at all was rendered in another way.
            assert whole == [*prompt, *sampled, *added]


def test_gemma_4_is_continued_by_the_package(tmp_path: Path) -> None:
    family = next(family for family in FAMILIES if family.name == "gemma4")
    assert isinstance(PolicyLanguage.of_policy(family.write(tmp_path)).renderer, FamilyRenderer)


def test_results_have_the_ids_that_kimi_gave_its_calls() -> None:
    family = next(family for family in FAMILIES if family.name == "kimi-k2")
    begin = "<|tool_calls_section_begin|>"
    calls = "".join(
        f"<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
        for name, at in (("find", 7), ("look", 8))
    )
    turn = renderer(family).encode(f"Hi.<|im_end|>{begin}{calls}<|tool_calls_section_end|><|im_end|>")
    new = [Message("tool", "B", tool_call_id="call_x_1"), Message("tool", "A", tool_call_id="call_x_0")]
    added = renderer(family).extend(turn, new, ())
    assert added is not None
    text = renderer(family).decode(list(added))
    assert text.startswith("<|im_system|>tool<|im_middle|>## Return of functions.look:8\nB<|im_end|>")
    assert "## Return of functions.find:7\nA" in text
