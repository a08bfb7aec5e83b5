"""Reads and checks a policy's model folder before a run starts. Without torch and transformers, which take
seconds to import.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harnessgym.errors import ConfigError, PolicyError
from harnessgym.run_config.run import PolicySection
from trainers.policies.native_config import NativeConfig

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_WEIGHTS = (
    _WHOLE,
    _INDEX,
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


def check_model(policy: PolicySection, prefix: str, *, embedded: bool) -> str:
    """Raises `ConfigError` if a run cannot begin with a policy's folder. Returns what a user should know
    about how the run's own engines serve it; empty if nothing.

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
    if (reason or policy.implementation == "transformers") and find_spec("transformers") is None:
        raise ConfigError(
            f"{prefix}path: transformers computes this model, and it is not installed: pip install "
            "'harnessgym-rl[models]'."
        )
    if not (reason and embedded):
        return ""
    return (
        f"Our own module does not compute this model: {reason} The run's own engines serve it through "
        "transformers' cache, which is slower than our own module and than vLLM (docs/models.md)."
    )


def token_difference(folder: Path, other: Path) -> str:
    """How the tokens of a model differ from those of another; empty if each has the same id there.

    Raises `PolicyError` if a tokenizer cannot be read.
    """
    theirs = _token_ids(other)
    for token, number in _token_ids(folder).items():
        if theirs.get(token) != number:
            return f"{token!r} is {number} in {folder}, and {theirs.get(token, 'missing')} there"
    return ""


def _token_ids(folder: Path) -> dict[str, int]:
    path = folder / "tokenizer.json"
    try:
        raw = json.loads(path.read_text())
        vocabulary = raw["model"]["vocab"]
        if isinstance(vocabulary, list):  # of Unigram models, with scores
            vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
        return {**vocabulary, **{token["content"]: token["id"] for token in raw["added_tokens"]}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PolicyError(f"{path} cannot be read: {error!r}. Restore the file.") from error


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(tokenizer, Mapping) and bool(tokenizer.get("chat_template"))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model folder says of its model."""

    parameters: int
    """Number of weights in its files."""
    dtype: str
    """Type of most weights, as safetensors names it: `BF16`, `F32`."""
    context: int
    """Most tokens of prompt and answer together; 0 if it states none."""
    layers: int
    cached: int
    """Numbers per token and layer that an engine caches: keys and values of all heads."""
    vocabulary: int
    native: bool
    """Whether the native policy computes it."""

    @property
    def count(self) -> str:
        """The number of weights, for a message."""
        size = self.parameters
        return f"{size / 1e9:.1f} billion" if size >= 1e9 else f"{size / 1e6:.1f} million"


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files that hold a model: one, or those of its index, or whatever there is.

    Folders from a hub may hold the same weights again under other names. Raises `PolicyError` if the index
    cannot be read.
    """
    if (folder / _WHOLE).exists():
        return (folder / _WHOLE,)
    index = folder / _INDEX
    if not index.is_file():
        return tuple(sorted(folder.glob("*.safetensors")))
    try:
        return tuple(
            folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PolicyError(f"{index} cannot be read: {error!r}. Restore the file.") from error


def facts_of(folder: Path) -> ModelFacts:
    """Reads a folder's configuration and the headers of its weights. Raises `PolicyError`."""
    raw = read_config(folder)
    text = raw.get("text_config") or raw
    sizes: Counter[str] = Counter()
    for path in weight_files(folder):
        for entry in _header(path).values():
            sizes[entry["dtype"]] += math.prod(entry["shape"])
    if not sizes:
        raise PolicyError(f"{folder} has no weights in safetensors files. Convert them with transformers.")
    heads = int(text.get("num_attention_heads") or 1)
    head_dim = int(text.get("head_dim") or int(text.get("hidden_size") or 0) // heads)
    return ModelFacts(
        parameters=sizes.total(),
        dtype=max(sizes, key=lambda name: sizes[name]),
        context=int(text.get("max_position_embeddings") or 0),
        layers=int(text.get("num_hidden_layers") or 0),
        cached=2 * int(text.get("num_key_value_heads") or heads) * head_dim,
        vocabulary=int(text.get("vocab_size") or 0),
        native=not why_not_native(raw),
    )


def _header(path: Path) -> dict[str, Any]:
    """The tensors that a safetensors file describes at its beginning."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 0 < size <= path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header: dict[str, Any] = json.loads(file.read(size))
    except (OSError, ValueError) as error:
        raise PolicyError(f"{path} cannot be read: {error}. Restore the file.") from error
    header.pop("__metadata__", None)
    return header
