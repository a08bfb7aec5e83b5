"""Model folders of tiny random models with the chat template of their family, and the commonest tokens of Qwen3's
tokenizer: with all of them, a tiny model is nothing but vocabulary.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import trl

from tests.support import qwen3_tokenizer
from tests.trainers.policies.families import SERVED, tiny_model

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
"""Published chat templates, as TRL carries them."""
_KEPT = 8_000
"""Tokens that are kept beside the special ones. Their ids are their ranks, so these need no others to be merged from."""
_EXPERTS = {"qwen3_moe": {"moe_intermediate_size": 32}}
"""vLLM 0.32's CPU build pads smaller experts when it starts, and cannot load them again."""


def tiny_folder(folder: Path, family: str, template: str, *, served: bool = False) -> Path:
    """Write the folder of a family's tiny model, with one of `TEMPLATES`. `served` makes it one that vLLM's CPU build
    serves. Raises as `qwen3_tokenizer.folder`.
    """
    folder.mkdir()
    special = _write_tokenizer(qwen3_tokenizer.folder(), folder)
    shutil.copy(TEMPLATES / template, folder / "chat_template.jinja")
    options = SERVED[family] | _EXPERTS.get(family, {}) if served else {}
    model = tiny_model(
        family,
        vocab_size=_KEPT + len(special),
        max_position_embeddings=65_536,
        bos_token_id=special["<|endoftext|>"],
        eos_token_id=special["<|im_end|>"],
        pad_token_id=special["<|endoftext|>"],
        **options,
    )
    model.save_pretrained(folder)
    return folder


def _write_tokenizer(source: Path, folder: Path) -> dict[str, int]:
    """Write a smaller tokenizer. Returns the ids of its special tokens."""
    raw: dict[str, Any] = json.loads((source / "tokenizer.json").read_text())
    model = raw["model"]
    model["vocab"] = {token: rank for token, rank in model["vocab"].items() if rank < _KEPT}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    for place, token in enumerate(raw["added_tokens"]):
        token["id"] = _KEPT + place
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    config = json.loads((source / "tokenizer_config.json").read_text())
    del config["chat_template"], config["added_tokens_decoder"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return {token["content"]: token["id"] for token in raw["added_tokens"]}
