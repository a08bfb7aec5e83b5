"""What a run needs of memory and disk at least, before it starts.

Only what is certain counts: weights, gradients, optimizer states, copies for checkpoints, one cached sequence
for each engine, versions on disk. Activations and harnesses come on top. So a run that is refused cannot fit.
"""

import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from harnessgym.errors import ConfigError, PolicyError
from harnessgym.run_config.run import RunConfig
from trainers.policies.model_folder import ModelFacts, facts_of

_F32 = 4
_DEFAULT_KEPT = 8


@dataclass(frozen=True, slots=True)
class CapacityNeed:
    """Bytes by what they are for."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    def text(self) -> str:
        """For a message: the total, and the largest parts."""
        listed = ", ".join(
            f"{name} {_size(part)}"
            for name, part in sorted(self.parts.items(), key=lambda item: -item[1])
            if part
        )
        return f"{_size(self.total)} ({listed})"


def _moments(config: RunConfig) -> int:
    """Bytes of the optimizer's state for each weight."""
    return 2 if config.trainer.update.get("optimizer") == "adamw_8bit" else 2 * _F32


def trainer_need(config: RunConfig, facts: ModelFacts) -> CapacityNeed:
    """Memory of the trainer's device or devices together."""
    weights = _F32 * facts.parameters
    if config.trainer.lora.on:
        return CapacityNeed({"weights": weights})
    critic = config.trainer.algorithm == "ppo"
    return CapacityNeed(
        {
            "weights": weights,
            "gradients": weights,
            "optimizer": _moments(config) * facts.parameters,
            "critic": (2 * weights + _moments(config) * facts.parameters) * critic,
        }
    )


def references_need(config: RunConfig, facts: ModelFacts) -> tuple[CapacityNeed, CapacityNeed]:
    """Memory of the trainer's device, and main memory, for the reference policy and the teacher."""
    device, main = dict[str, int](), dict[str, int]()
    sections = (("kl", "reference", "start"), ("distillation", "teacher", None))
    for section, key, default in sections:
        settings = config.trainer.update.get(section)
        if not settings:
            continue
        named = settings.get(key, default)
        named = {"name": named} if isinstance(named, str) else named or {}
        if named.get("name") == "model":
            device[key] = _F32 * facts_of(Path(named["path"])).parameters
        elif named.get("name") != "engine" and not (config.trainer.lora.on and named.get("name") == "start"):
            main[key] = _F32 * facts.parameters
    return CapacityNeed(device), CapacityNeed(main)


def copies_need(config: RunConfig, facts: ModelFacts) -> CapacityNeed:
    """Main memory of what a checkpoint is written from, beside the trainer's own."""
    weights = _F32 * facts.parameters
    optimizer = 0 if config.trainer.lora.on else _moments(config) * facts.parameters
    return CapacityNeed(
        {"copies for checkpoints": weights + optimizer * (config.trainer.checkpoints == "lazy")}
    )


def engine_need(config: RunConfig, facts: ModelFacts) -> CapacityNeed:
    """Memory of the run's own engines together, each with one sequence of the greatest length: what a cache
    has room for occupies memory only when it is written. Caches of models that the native policy does not
    compute may be smaller, and are not counted.
    """
    workers = config.engine.workers
    cache = facts.layers * facts.cached * config.engine.max_length * _F32 * facts.native
    return CapacityNeed(
        {"engines' weights": workers * _F32 * facts.parameters, "engines' caches": workers * cache}
    )


def main_memory_need(config: RunConfig, facts: ModelFacts) -> CapacityNeed:
    """Main memory of a run: while it trains, or while it starts, if that is more. At the start every process
    of the trainer loads the whole model in float32, before it keeps its shard.
    """
    models, copied = references_need(config, facts)
    trainer = {**trainer_need(config, facts).parts, **models.parts} if config.trainer.device == "cpu" else {}
    engines = engine_need(config, facts).parts if config.engine.device == "cpu" else {}
    copies = {**copies_need(config, facts).parts, **copied.parts}
    trains = CapacityNeed({**trainer, **copies, **engines})
    loading = config.trainer.processes * _F32 * facts.parameters
    starts = CapacityNeed({"loading in each process": loading, **engines})
    return max(trains, starts, key=lambda need: need.total)


def disk_need(config: RunConfig, facts: ModelFacts) -> CapacityNeed:
    """Disk of the newest versions and of the checkpoint, while the next one is written."""
    publish = config.trainer.publish
    each = _F32 if publish.dtype in (None, "float32") else 2
    # A chain of deltas stands on one full version, whose deltas are small beside it.
    full = 1 if publish.kind == "delta" else min(publish.keep or _DEFAULT_KEPT, config.trainer.steps + 1)
    state = 0 if config.trainer.lora.on else (_F32 + _moments(config)) * facts.parameters
    return CapacityNeed({"versions": full * each * facts.parameters, "checkpoints": 2 * state})


def check_capacity(config: RunConfig, root: Path) -> None:
    """Raises `ConfigError` if a run's first policy cannot fit into this machine's memory or the disk of its
    folder `root`.
    """
    try:
        facts = facts_of(Path(config.policy.path))
    except PolicyError:
        return  # weights in another format, whose size is not known
    main, engines = main_memory_need(config, facts), engine_need(config, facts)
    models, _ = references_need(config, facts)
    trainer = CapacityNeed({**trainer_need(config, facts).parts, **models.parts})
    memory = psutil.virtual_memory().total
    if main.total > memory:
        raise ConfigError(
            f"policy.path: a run of {facts.count} weights needs at least {main.text()} of main "
            f"memory, and this machine has {_size(memory)}: {_remedy(config)}."
        )
    if "cuda" in (config.trainer.device, config.engine.device) and (devices := _gpu_memory()):
        _check_gpus(config, facts, trainer, engines, devices)
    disk = disk_need(config, facts)
    usage = shutil.disk_usage(_existing(root))
    # What a run that goes on has written already is part of what it needs.
    if usage.total and disk.total > usage.free + _written(root):  # /proc and its like have no size
        raise ConfigError(
            f"The run's folder needs at least {disk.text()}, and {root} has {_size(usage.free)} free: choose "
            'another --folder, or set trainer.publish.dtype = "bfloat16" or a smaller trainer.publish.keep.'
        )


def _check_gpus(
    config: RunConfig,
    facts: ModelFacts,
    trainer: CapacityNeed,
    engines: CapacityNeed,
    devices: list[int],
) -> None:
    """`devices` are the bytes of each GPU. Raises `ConfigError`."""
    held = sum(devices[: config.trainer.processes])
    if config.trainer.device == "cuda" and trainer.total > held:
        raise ConfigError(
            f"policy.path: training {facts.count} weights needs at least {trainer.text()} of "
            f"GPU memory, and {config.trainer.processes} GPUs have {_size(held)}: {_remedy(config)}, or "
            "raise trainer.processes."
        )
    if config.engine.device == "cuda" and engines.total > devices[0]:
        raise ConfigError(
            f"engine.workers: engines of {facts.count} weights need at least {engines.text()} "
            f"of GPU memory, and the first GPU has {_size(devices[0])}: lower engine.workers, or take a "
            "smaller model."
        )


def _remedy(config: RunConfig) -> str:
    if config.trainer.lora.on:
        return "take a smaller model"
    return "take a smaller model, or train adapters (trainer.lora.rank = 32)"


def _gpu_memory() -> list[int]:
    """Bytes of each GPU, as its driver says; none if there is no driver."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=10)
        return [int(line) << 20 for line in done.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def _written(root: Path) -> int:
    """Bytes of the files in a run's folder."""
    sizes = 0
    for path in root.rglob("*"):
        with suppress(OSError):  # another process may be removing it
            sizes += path.lstat().st_size
    return sizes


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.resolve().parents) if each.exists())


def _size(amount: int) -> str:
    return f"{amount / 1e9:.1f} GB" if amount >= 1e8 else f"{amount / 1e6:.1f} MB"
