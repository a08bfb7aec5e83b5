"""Prepares a run: looks up everything its configuration names and claims its folder. Spawns nothing."""

import fcntl
import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from harnessgym.errors import ConfigError, HarnessError
from harnessgym.grading.integrity import refusal
from harnessgym.process import identify
from harnessgym.provisioning import make_harness
from harnessgym.registry import Kind, load, look_in, names
from harnessgym.reward import make_rewards
from harnessgym.run_config.run import PolicySection, RunConfig
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.run_identity import has_begun
from harnessgym.scheduling.selection import SelectionPool, make_selector
from harnessgym.tasks.contamination import contamination
from harnessgym.tasks.source import absolute, remarks_of, task_set
from harnessgym.validation.baseline import Fitness, fitness

T = TypeVar("T")
P = TypeVar("P", bound=PolicySection)
Notify = Callable[[str], None]
_PLACING: Any = {
    "cluster": True,
    "metrics": True,
    "code": True,
    "store": {"url"},
    "engine": {"outside", "device"},
    "trainer": {"processes", "device"},
}
"""Settings that may change between two starts of a run: where processes and modules are and where metrics
go. The database may move too, because the run is found in it by its id."""
NOTHING_TO_EXTEND = "--extend: {} holds no run to lengthen. Leave --extend out to start one."
_UPDATE_SETTINGS = "trainers.update_settings:settings_of"
_PPO_SETTINGS = "trainers.ppo_settings:ppo_settings_of"
_CAPACITY_CHECK = "trainers.policies.capacity:check_capacity"
_MODEL_CHECK = "trainers.policies.model_folder:check_model"
_ADVANTAGE_SETTINGS = "trainers.advantages.estimator:checked_settings"


def prepare(
    config: RunConfig,
    root: Path,
    notify: Notify = lambda _: None,
    *,
    extend: bool = False,
    here: bool = True,
) -> RunFolder:
    """Make a run's folder, or reuse the existing one.

    `notify` gets a line for each setting that is allowed but probably a mistake: unchecked tasks, settings
    without effect. `extend` lets `trainer.steps` grow. `here` says whether trainer and engines run on this
    machine, whose memory and disk must then be enough. Raises `ConfigError`, naming the setting, for a
    configuration that cannot run and for a folder that belongs to another configuration.
    """
    folder = RunFolder(root.resolve())
    config = resolved(config)
    look_in(*config.code)
    _check_names(config)
    if unapplied := _unapplied(config):
        notify(
            f"Trainer: HarnessGym's own algorithms read {', '.join(unapplied)}; {config.trainer.algorithm} "
            "may not: leave them out, or see its documentation."
        )
    if config.sampling.max_tokens >= config.engine.max_length:
        notify(
            f"Sampling: sampling.max_tokens is {config.sampling.max_tokens} and engine.max_length, which "
            f"prompt and answer share, {config.engine.max_length}: calls end at the latter. Raise "
            "engine.max_length, or lower sampling.max_tokens."
        )
    _check_tasks(config, notify)
    for policy in config.all_policies:
        prefix = "policy." if policy is config.policy else f"policy {policy.name!r}: "
        embedded = policy.name in config.engine_policies
        if remark := load("settings", _MODEL_CHECK)(policy, prefix, embedded=embedded):
            notify(f"Engine: {remark}")
    if here:
        load("settings", _CAPACITY_CHECK)(config, folder.root)
    if not folder.config_path.exists():
        if extend:
            raise ConfigError(NOTHING_TO_EXTEND.format(folder.root))
        try:
            write_json(folder.config_path, config.model_dump(mode="json"), mode=0o600)
        except (PermissionError, NotADirectoryError, FileExistsError) as error:
            raise ConfigError(
                f"The run folder {root} cannot be written ({error.strerror}). Give another --folder."
            ) from error
        return folder
    recorded = _recorded(folder)
    refuse_changes(recorded, config, folder.root, extend=extend)
    if recorded != config and not has_begun(folder):  # of a run that has begun, `start_run` writes it
        write_json(folder.config_path, config.model_dump(mode="json"), mode=0o600)
    return folder


def resolved(config: RunConfig) -> RunConfig:
    """The configuration with absolute paths."""
    paths = {
        "code": tuple(dict.fromkeys(str(Path(each).resolve()) for each in (*config.code, "."))),
        "policy": _resolved(config.policy),
        "policies": tuple(_resolved(policy) for policy in config.policies),
        "tasks": config.tasks.model_copy(update={"set": absolute(config.tasks.set)}),
    }
    return config.model_copy(update=paths)


def _resolved(policy: P) -> P:
    return policy.model_copy(update={"path": str(Path(policy.path).resolve())})


def essence(config: RunConfig, *, but_for_steps: bool = False) -> dict[str, Any]:
    """The settings that must not change between two starts of a run."""
    settings = config.model_dump(mode="json", exclude=_PLACING)
    if but_for_steps:
        del settings["trainer"]["steps"]
    return settings


def refuse_changes(recorded: RunConfig, config: RunConfig, root: Path, *, extend: bool) -> None:
    """Raises `ConfigError` if a configuration differs from that of the run in a folder.

    `extend` lets `trainer.steps` grow.
    """
    steps = recorded.trainer.steps
    wanted = config.trainer.steps
    changed = differences(essence(recorded), essence(config))
    others = differences(essence(recorded, but_for_steps=True), essence(config, but_for_steps=True))
    if wanted > steps and not others:
        if extend:
            return
        raise ConfigError(
            f"{root} holds a run of {steps} step{'s' * (steps != 1)}, and trainer.steps is {wanted} now. "
            "Add --extend to lengthen it: it goes on from its last checkpoint. Give another --folder to "
            "start a new run."
        )
    if changed:
        hint = (
            "--extend lets trainer.steps grow, and changes nothing else. " if extend or wanted < steps else ""
        )
        raise ConfigError(
            f"{root} holds a run with another configuration: {'; '.join(changed)}. {hint}"
            "Give another --folder, or remove that one first."
        )


def _recorded(folder: RunFolder) -> RunConfig:
    """The configuration recorded in a folder. Raises `ConfigError` if this release cannot read it."""
    try:
        return folder.config()
    except ConfigError as error:
        raise ConfigError(
            f"{error} Another release made that run. Give another --folder, or remove that one first."
        ) from error


def claim_folder(folder: RunFolder) -> int:
    """Claim a run folder. Returns a descriptor that holds the claim until it is closed or the process ends.

    Raises `ConfigError` if another supervisor holds it.
    """
    path = folder.root / "supervisor.pid"
    path.parent.mkdir(parents=True, exist_ok=True)
    # The kernel releases a flock when its process dies, so a killed supervisor leaves no stale claim.
    # CLOEXEC keeps child processes from inheriting the lock and outliving the supervisor with it.
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(
            f"Process {_pid_in(path)} is running {folder.root} already. Wait for it, or end it."
        ) from None
    for torn in (
        *folder.root.glob(".*.json.*"),
        *folder.root.glob("services/.*.json.*"),
    ):  # by a writer that was killed
        torn.unlink(missing_ok=True)
    own = identify(os.getpid())
    assert own is not None
    os.truncate(lock, 0)
    os.write(lock, json.dumps([own.pid, own.started]).encode())
    return lock


def choose_sandbox(config: RunConfig, notify: Notify, lacks: Callable[[str], str | None]) -> str:
    """The configured sandbox backend, or its fallback, which is announced, if nodes cannot use it.

    `lacks` returns why nodes cannot use a backend. Raises `ConfigError` if there is no fallback.
    """
    problem = lacks(config.sandbox.backend)
    if problem is None:
        return config.sandbox.backend
    if not config.sandbox.fallback:
        raise ConfigError(f"The sandbox backend {config.sandbox.backend!r} cannot be used: {problem}")
    notify(f"Sandbox: {problem} Falling back to {config.sandbox.fallback!r}, which isolates nothing.")
    return config.sandbox.fallback


def _check_names(config: RunConfig) -> None:
    """Look up every name. Registered algorithms are not loaded, because that would import torch."""
    for section in config.harnesses:
        _load(f"harness {section.name!r}", "harness", section.type)
        try:
            make_harness(section)
        except HarnessError as error:
            raise ConfigError(f"harness {section.name!r}: {error}") from error
    make_rewards(config.rewards)
    _load("sandbox.backend", "sandbox", config.sandbox.backend)
    if config.sandbox.fallback:
        _load("sandbox.fallback", "sandbox", config.sandbox.fallback)
    for name in config.metrics.sinks:
        _check_sink(name)
    trainer = config.trainer
    if trainer.algorithm not in names("algorithm"):
        _load("trainer.algorithm", "algorithm", trainer.algorithm)
    else:
        settings_of = load("settings", _PPO_SETTINGS if trainer.algorithm == "ppo" else _UPDATE_SETTINGS)
        settings_of(config)
        for policy in config.policies:
            settings_of(config.of_policy(policy.name), f"update of policy {policy.name!r}")
    if trainer.advantage not in names("advantage"):
        _load("trainer.advantage", "advantage", trainer.advantage)
    load("settings", _ADVANTAGE_SETTINGS)(
        trainer.advantage, trainer.advantage_settings, stream=trainer.stream
    )
    pool = SelectionPool((), trainer.group_size, trainer.groups_per_step, config.seed)
    _named(
        "generate",
        "selector",
        lambda: make_selector(config.generate.selector, config.generate.settings, pool),
    )


def _unapplied(config: RunConfig) -> list[str]:
    """Settings given for our own algorithms in a run that names another algorithm."""
    trainer = config.trainer
    if trainer.algorithm in names("algorithm"):
        return []
    own = [
        name
        for name in ("advantage", "advantage_settings", "checkpoints", "ppo")
        if name in trainer.model_fields_set
    ]
    return [f"trainer.{name}" for name in own] + [f"trainer.update.{name}" for name in trainer.update]


def _check_sink(name: str) -> None:
    """Raises `ConfigError` for an unknown sink, or one whose package is not installed."""
    needed = _load("metrics.sinks", "sink", name).needs
    module_spec = find_spec(needed)
    if module_spec is None or module_spec.origin is None:  # a folder of that name is no package
        hint = "pip install 'harnessgym-rl[metrics]'" if needed == "tensorboard" else f"pip install {needed}"
        raise ConfigError(f"metrics.sinks: {name!r} needs {needed}, which is not installed: {hint}.")


def _check_tasks(config: RunConfig, notify: Notify) -> None:
    """Raises `ConfigError` without tasks, or if some failed their check. Notes unchecked and omitted ones."""
    spec = config.tasks.set
    whole_set = _named("tasks.set", "task_set", lambda: task_set(spec))
    training = whole_set.tasks("train")
    held_out = whole_set.tasks("test")[: config.evaluation.tasks]
    if not training:
        raise ConfigError(f"tasks.set: the task set {spec!r} has no training tasks.")
    if config.evaluation.tasks and not held_out:
        hint = "Set evaluation.tasks to 0, or choose another set."
        raise ConfigError(f"tasks.set: the task set {spec!r} has no held-out tasks to evaluate on. {hint}")
    for line in remarks_of(whole_set):
        notify(f"Tasks: {line}")
    shared = contamination(training, held_out)
    if shared.refusal:
        raise ConfigError(
            f"tasks.set: {shared.refusal} Keep each task in one split, or set evaluation.tasks to 0."
        )
    if shared.warning:
        notify(f"Tasks: {shared.warning}")
    fit = fitness(spec, whole_set, [*training, *held_out])
    if fit.refusal and not config.tasks.unfit:
        raise ConfigError(f"tasks.set: {fit.refusal}\nFix or remove them, or set tasks.unfit = true.")
    if fit.warning:
        notify(f"Tasks: {fit.warning}")
    node = config.node
    if node.second_opinion == "required":
        _check_opinions(config, fit, notify)
    if weak := refusal([*training, *held_out], node.second_opinion, node.integrity):
        raise ConfigError(f"node.integrity: {weak}")


def _check_opinions(config: RunConfig, fit: Fitness, notify: Notify) -> None:
    """Raises `ConfigError` for tasks that cannot have the second opinion. Notes those of which none knows."""
    if fit.opinion_refusal and not config.tasks.unfit:
        raise ConfigError(
            f"node.second_opinion: {fit.opinion_refusal}\nRemove them, set another value, or set "
            "tasks.unfit = true. Rollouts of theirs that are rewarded then end as infrastructure errors."
        )
    if fit.opinion_warning:
        notify(f"Tasks: {fit.opinion_warning}")


def _load(setting: str, kind: Kind, name: str) -> Any:
    """Load what a setting names. Raises `ConfigError` that names the setting and the known names."""
    return _named(setting, kind, lambda: load(kind, name))


def _named(setting: str, kind: Kind, find: Callable[[], T]) -> T:
    """The result of `find`. Raises `ConfigError` that names the setting and the known names."""
    try:
        return find()
    except ConfigError as error:
        known = "" if "Known:" in str(error) else f" Known: {', '.join(names(kind))}."
        raise ConfigError(f"{setting}: {error}{known}") from error


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Dotted names of settings that differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted({*old, *new})
        return [
            line
            for key in keys
            for line in differences(old.get(key), new.get(key), f"{where}.{key}".lstrip("."))
        ]
    return [] if old == new else [f"{where} was {old!r} and is {new!r}"]


def _pid_in(path: Path) -> str:
    try:
        return str(json.loads(path.read_text())[0])
    except (ValueError, IndexError, TypeError):
        return "of another supervisor"
