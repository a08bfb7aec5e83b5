"""Model folders of tiny random models with the tokenizer of Qwen3 and the chat template of their family."""

import json
import shutil
from pathlib import Path
from typing import Any

import trl

from tests.support import qwen3_tokenizer
from tests.trainers.policies.families import SERVED, tiny_model

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
"""Published chat templates, as TRL carries them."""
_QWEN3: dict[str, Any] = {
    "vocab_size": 151_936,
    "max_position_embeddings": 65_536,
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
    "pad_token_id": 151_643,
}
_EXPERTS = {"qwen3_moe": {"moe_intermediate_size": 32}}
"""vLLM 0.32's CPU build pads smaller experts when it starts, and cannot load them again."""


def tiny_folder(folder: Path, family: str, template: str) -> Path:
    """Write the folder of a family's tiny model, with one of `TEMPLATES`. Raises as `qwen3_tokenizer.folder`."""
    tokenizer = qwen3_tokenizer.folder()
    model = tiny_model(family, **SERVED.get(family, {}), **_QWEN3, **_EXPERTS.get(family, {}))
    model.save_pretrained(folder)
    shutil.copy(tokenizer / "tokenizer.json", folder)
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    config.pop("chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    shutil.copy(TEMPLATES / template, folder / "chat_template.jinja")
    return folder
