"""A run file with sensible sizes for a model, a task set and a harness: what `harnessgym train --model` runs.

The file that comes out is an ordinary one. It is printed, and meant to be read and changed.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from harnessgym.errors import ConfigError, PolicyError
from harnessgym.registry import names
from trainers.policies.model_folder import ModelFacts, facts_of

_SMALL = 50_000_000
"""Weights up to which a model learns quickly at a high rate, as the shipped one does."""
_LARGE = 500_000_000
"""Weights from which activations are computed again rather than kept."""
_WHOLE_WEIGHTS = 3_000_000_000
"""Weights for each GPU from which adapters are trained: whole weights take 16 bytes each, and more for
activations."""
EMBEDDED = "embedded"
"""The run's own engines, as `--engine` names them."""
_SLOWER = """\
# Its engines serve this model through transformers' cache, which is slower than our own module and than vLLM
# (docs/weights-engines.md).
"""
_WEIGHT_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HARNESS_CLASS = re.compile(r"\w+(\.\w+)*:\w+")


@dataclass(frozen=True, slots=True)
class FirstRun:
    """What a run is to be made of."""

    model: str
    """Model folder, or id on the Hugging Face hub."""
    tasks: str
    """Task set, as in `[tasks] set`."""
    harness: str
    """Registered harness, its `module:Class`, or a command line."""
    gpus: int = 0
    engine: str = ""
    """URL of a vLLM that serves the model; the run's own engines if it is `embedded` or empty."""

    def run_file(self) -> tuple[str, str]:
        """The run's name, and the text of its file.

        Raises `ConfigError` if the model cannot be found, or if the engine is neither.
        """
        folder = model_folder(self.model)
        try:
            facts = facts_of(folder)
        except PolicyError as error:
            raise ConfigError(f"--model: {error}") from error
        if self.engine not in ("", EMBEDDED) and not self.engine.startswith(("http://", "https://")):
            raise ConfigError(
                f"--engine: {self.engine!r} is neither {EMBEDDED!r} nor the URL of a vLLM, such as "
                "http://127.0.0.1:8000."
            )
        name = f"{_plain(folder.name)}-{_plain(Path(self.tasks).stem)}"
        made_of = f"{facts.count} weights, {self.tasks} with {self.harness}"
        head = f"# Made by `harnessgym train --model`: {made_of}.\n"
        if not facts.native and not self.outside:
            head += _SLOWER
        return name, head + tomli_w.dumps(_config(self, name, folder, facts))

    @property
    def outside(self) -> str:
        """URL of the engine that the run does not start; empty if its own serve the model."""
        return "" if self.engine == EMBEDDED else self.engine


def model_folder(model: str) -> Path:
    """The folder of a model, downloaded if it is an id. Raises `ConfigError` if there is none."""
    folder = Path(model)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or not _HUB_ID.fullmatch(model):
        raise ConfigError(
            f"--model: {model} is no model folder (config.json is missing), and no id of a model."
        )
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise ConfigError(
            "--model: ids need huggingface-hub: pip install 'harnessgym-rl[models]'."
        ) from error
    try:
        return Path(snapshot_download(model, allow_patterns=_WEIGHT_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"--model: {model} cannot be fetched: {reason} Download it where there is a network (`hf "
            f"download {model} --local-dir FOLDER`), and give the folder."
        ) from error


def _config(run: FirstRun, name: str, folder: Path, facts: ModelFacts) -> dict[str, Any]:
    small = facts.parameters <= _SMALL
    length = min(facts.context or 4_096, 32_768 if run.outside else 4_096)
    return {
        "name": name,
        "policy": {"path": str(folder)},
        "tasks": {"set": run.tasks},
        "harnesses": [_harness(run.harness)],
        "sampling": {"max_tokens": min(2_048, length // 4)},
        "engine": _engine(run, length, small),
        "trainer": _trainer(run, facts, small),
        "evaluation": {"tasks": 100},
    }


def _harness(named: str) -> dict[str, Any]:
    if named in names("harness") and named != "command":
        return {"name": named, "type": named}
    if _HARNESS_CLASS.fullmatch(named):
        return {"name": _plain(named.rpartition(":")[2]), "type": named}
    argv = shlex.split(named)
    if not argv:
        raise ConfigError(f"--harness: name one of {', '.join(names('harness'))}, or a command line.")
    return {"name": _plain(Path(argv[-1]).stem), "type": "command", "settings": {"argv": argv}}


def _engine(run: FirstRun, length: int, small: bool) -> dict[str, Any]:
    if run.outside:
        return {"workers": 0, "max_length": length, "outside": [{"kind": "vllm", "url": run.outside}]}
    return {"workers": 2 if small else 1, "max_length": length, "max_batch": 16}


def _trainer(run: FirstRun, facts: ModelFacts, small: bool) -> dict[str, Any]:
    trainer: dict[str, Any] = {
        "steps": 24 if small else 100,
        "groups_per_step": 16 if small else 8,
        "group_size": 4 if small else 8,
        "max_staleness": 1,
        "update": {"lr": 4e-4 if small else 1e-6},
    }
    if run.gpus:
        trainer |= {"device": "cuda", "processes": run.gpus, "dtype": "bfloat16"}
    if facts.parameters >= _LARGE:
        trainer["gradient_checkpointing"] = True
    if facts.parameters >= _WHOLE_WEIGHTS * max(1, run.gpus):
        trainer |= {"lora": {"rank": 32, "alpha": 64.0}, "update": {"lr": 2e-5}}
    if run.outside and facts.dtype == "BF16":
        trainer["publish"] = {"dtype": "bfloat16"}
    return trainer


def _plain(name: str) -> str:
    """A name that may be a folder and a model's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
