"""Checks a policy's model folder before a run starts. Without torch and transformers, which take seconds to
import.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harnessgym.errors import ConfigError, PolicyError
from harnessgym.run_config.run import PolicySection
from trainers.policies.native_config import NativeConfig

_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a model folder. Raises `PolicyError` if there is none."""
    path = folder / "config.json"
    if not path.is_file():
        raise PolicyError(f"No policy at {folder}: config.json is missing. Give a Hugging Face model folder.")
    try:
        raw: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise PolicyError(f"{path} cannot be read: {error}. Restore the file.") from error
    return raw


def why_not_native(raw: Mapping[str, Any], where: str = "config.json") -> str:
    """Why the native policy does not compute the model of a `config.json`; empty if it does."""
    try:
        NativeConfig.from_hf(dict(raw), where)
    except PolicyError as error:
        return str(error)
    except (KeyError, TypeError, ValueError) as error:
        return f"{where} does not describe a model of Qwen3 or Llama ({error!r})."
    return ""


def check_model(policy: PolicySection, prefix: str, *, embedded: bool) -> None:
    """Raises `ConfigError` if a run cannot begin with a policy's folder.

    `prefix` is what messages write before the names of settings, such as `policy.`, and `embedded` says
    whether the run's own engines serve it.
    """
    folder = Path(policy.path)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{prefix}path: there is no model at {folder} (config.json is missing).")
    try:
        raw = read_config(folder)
    except PolicyError as error:
        raise ConfigError(f"{prefix}path: {error}") from error
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise ConfigError(
            f"{prefix}path: {folder} has no weights (model.safetensors, or its index). Download the whole "
            "folder."
        )
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(
            f"{prefix}path: {folder} has no tokenizer.json. Write it with transformers: "
            "AutoTokenizer.from_pretrained(ID).save_pretrained(FOLDER)."
        )
    if not _has_template(folder):
        raise ConfigError(
            f"{prefix}path: {folder} has no chat template, so messages cannot become tokens. Put that of "
            "the model's instruct version there as chat_template.jinja."
        )
    reason = why_not_native(raw, str(folder / "config.json"))
    if reason and policy.implementation == "native":
        raise ConfigError(f'{prefix}implementation = "native": {reason} Leave it out, or set "transformers".')
    if reason and embedded:
        raise ConfigError(
            f"{prefix}path: {reason} The run's own engines compute Qwen3 and Llama only: serve it with "
            'vLLM, with engine.workers = 0 and [[engine.outside]] with its url and kind = "vllm".'
        )


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(tokenizer, Mapping) and bool(tokenizer.get("chat_template"))
