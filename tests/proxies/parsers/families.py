"""Families of models: the published chat template of each, and a small tokenizer with its special tokens.

The templates are those that TRL carries, or, where it has none, ones written from the documented format
(`templates/`). The tokenizers are byte-level BPEs, made here.
"""

# ruff: noqa: RUF001 - the vertical lines of DeepSeek's tags are full-width

import importlib.util
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from harnessgym.message import Message, ToolSpec
from proxies.renderers.template import TemplateRenderer

_WRITTEN = Path(__file__).parent / "templates"
TOOL = ToolSpec(
    "find",
    "Find an item.",
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "count": {"type": "integer"},
            "ratio": {"type": ["number", "null"]},
            "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "items": {"$ref": "#/$defs/list"},
            "deep": {"type": "object"},
        },
        "$defs": {"list": {"type": "array"}},
        "required": ["name"],
    },
)


@dataclass(frozen=True)
class Family:
    """A family of models."""

    name: str
    grammar: str
    template: str
    """The name of the template's file. One of TRL begins with `trl/`."""
    tokens: tuple[str, ...]
    """Special tokens, the end of a turn first."""
    tags: tuple[str, ...] = ()
    """Further added tokens, which are not special."""
    model_type: str = ""
    reasons: bool = True
    """Whether the template writes reasoning of the last turn."""
    reasons_always: bool = False
    """Whether it begins every turn that it continues with reasoning."""
    says_with_calls: bool = True
    """Whether it writes content beside calls."""
    several: bool = True
    """Whether it writes more than one call."""
    unquotable: str = "<>"
    """Characters that its strings and texts cannot have, or that are escaped in a way that loses them."""
    values: tuple[str, ...] = field(default=("name", "count", "ratio", "flag", "items", "deep"))
    """Arguments of `find` that it writes without loss."""

    @property
    def source(self) -> str:
        """The text of its template."""
        if not self.template.startswith("trl/"):
            return (_WRITTEN / self.template).read_text()
        spec = importlib.util.find_spec("trl")
        assert spec is not None
        assert spec.origin is not None
        return (Path(spec.origin).parent / "chat_templates" / self.template.removeprefix("trl/")).read_text()

    def write(self, folder: Path) -> Path:
        """Write its model folder, without weights."""
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer(self).save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text(self.source)
        config = {"eos_token": self.tokens[0], "bos_token": self.tokens[-1]}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        (folder / "config.json").write_text(json.dumps({"model_type": self.model_type}))
        return folder


@cache
def tokenizer(family: Family) -> Tokenizer:
    """A byte-level BPE with the family's added tokens, trained on its template."""
    out = Tokenizer(models.BPE())
    out.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    out.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    out.train_from_iterator([re.sub(r"\s+", " ", family.source), *map(json.dumps, _EXAMPLES)], trainer)
    out.add_special_tokens([AddedToken(token, normalized=False) for token in family.tokens])
    out.add_tokens([AddedToken(token, normalized=False) for token in family.tags])
    return out


@cache
def renderer(family: Family) -> TemplateRenderer:
    """Its template with its tokenizer."""
    roles = {"eos_token": family.tokens[0], "bos_token": family.tokens[-1]}
    return TemplateRenderer(tokenizer(family), family.source, roles, family.name)


_EXAMPLES = ({"name": "red lamp", "count": 3, "items": [1, True], "deep": {"of": None}},)
_THINK = ("<think>", "</think>")
_RESPONSE = ("<tool_response>", "</tool_response>")
_CALL = ("<tool_call>", "</tool_call>")
_CHATML = ("<|im_end|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
           "<|endoftext|>")  # fmt: skip
_GLM = ("<|user|>", "<|assistant|>", "<|observation|>", "<|system|>", "<|endoftext|>", "[gMASK]", "<sop>")
_GLM_TAGS = (*_THINK, *_CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_LLAMA = (
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|python_tag|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|begin_of_text|>",
)
_DEEPSEEK = (
    "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜begin▁of▁sentence｜>",
)  # fmt: skip
_KIMI = (
    "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "[BOS]",
)  # fmt: skip
_GEMMA4 = (
    "<turn|>", "<|turn>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
    "<|channel>", "<channel|>", "<|tool>", "<tool|>", "<|think|>", "<|image>", "<image|>",
    "<|image|>", "<eos>", "<bos>",
)  # fmt: skip
_FUNCTIONGEMMA = (
    "<end_of_turn>", "<start_of_turn>", "<start_function_call>", "<end_function_call>",
    "<start_function_response>", "<end_function_response>", "<escape>", "<bos>",
)  # fmt: skip
_MISTRAL = ("</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
            "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[THINK]", "[/THINK]", "<s>")  # fmt: skip
_HARMONY = (
    "<|return|>",
    "<|call|>",
    "<|end|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|startoftext|>",
)
_LFM = ("<|im_end|>", "<|im_start|>", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_list_start|>",
        "<|tool_list_end|>", "<|tool_response_start|>", "<|tool_response_end|>", "<|startoftext|>")  # fmt: skip
_LLAMA4 = (
    "<|eot|>",
    "<|header_start|>",
    "<|header_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|begin_of_text|>",
)
_MINIMAX = ("[e~[", "]~b]", "]~!b[")

FAMILIES: Sequence[Family] = (
    Family("qwen3", "hermes", "trl/qwen3.jinja", _CHATML, (*_THINK, *_CALL, *_RESPONSE), "qwen3"),
    Family("qwen3-coder", "qwen3_coder", "qwen3_coder.jinja", _CHATML, _CALL, reasons=False),
    Family("qwen3.5", "qwen3_coder", "trl/qwen3_5_think.jinja", _CHATML, (*_THINK, *_CALL, *_RESPONSE), "qwen3_5"),
    Family("glm-4.5", "glm", "trl/glm4moe.jinja", _GLM, _GLM_TAGS, "glm4_moe"),
    Family("glm-5", "glm", "glm5.jinja", _GLM, (*_GLM_TAGS, *_RESPONSE), reasons_always=True),
    Family("minimax-m2", "minimax", "minimax.jinja", _MINIMAX, (*_THINK, "<minimax:tool_call>", "</minimax:tool_call>")),
    Family("deepseek-v3", "deepseek", "trl/deepseekv3.jinja", _DEEPSEEK, _THINK, "deepseek_v3", reasons=False),
    Family("deepseek-v3.1", "deepseek", "deepseek_v31.jinja", _DEEPSEEK, _THINK, reasons=False),
    Family("kimi-k2", "kimi", "kimi.jinja", _KIMI, model_type="kimi_k2", reasons=False),
    Family("gemma4", "gemma", "trl/gemma4_v5.jinja", _GEMMA4, model_type="gemma4", says_with_calls=False),
    Family("functiongemma", "gemma", "functiongemma.jinja", _FUNCTIONGEMMA, reasons=False),
    Family("mistral-v3", "mistral", "mistral_v3.jinja", _MISTRAL, reasons=False),
    Family("mistral-v13", "mistral", "mistral_v13.jinja", _MISTRAL, reasons=False),
    Family("gpt-oss", "harmony", "trl/gptoss.jinja", _HARMONY, model_type="gpt_oss", says_with_calls=False, several=False),
    Family("llama-3.1", "llama3", "trl/llama3_1.jinja", _LLAMA, model_type="llama", reasons=False,
           says_with_calls=False, several=False),
    Family("llama-3.2", "llama3", "trl/llama3_2.jinja", _LLAMA, model_type="llama", reasons=False,
           says_with_calls=False, several=False),
    Family("llama-4", "pythonic", "llama4_pythonic.jinja", _LLAMA4, reasons=False, says_with_calls=False),
    Family("lfm2", "pythonic", "trl/lfm2_v2.jinja", _LFM, reasons=False),
    Family("lfm2.5", "pythonic", "trl/lfm2_2_5.jinja", _LFM, _THINK, unquotable="<>'\\"),
)  # fmt: skip
"""Every family of the tests."""


def asked() -> tuple[Message, ...]:
    """What comes before the turn."""
    return (Message("user", "What is it?"),)
