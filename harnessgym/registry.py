"""The one registry: names to `"module:attribute"` strings, loaded when asked for.

A full `module:attribute` is accepted wherever a name is, so a plugin needs no registration.
"""

import importlib
from typing import Any, Literal

from harnessgym.config import nearest
from harnessgym.errors import ConfigError

Kind = Literal[
    "task_set", "harness", "sandbox", "algorithm", "advantage", "grader", "dialect", "parser", "upstream", "service", "settings"
]

REGISTRY: dict[Kind, dict[str, str]] = {
    "task_set": {"lookup": "environments.lookup:LookupTasks"},
    "harness": {"command": "harnessgym.harnesses.command:Command"},
    "sandbox": {
        "process": "harnessgym.sandboxes.process:Process",
        "bubblewrap": "harnessgym.sandboxes.bubblewrap:Bubblewrap",
    },
    "algorithm": {"grpo": "trainers.grpo:train"},
    "advantage": {
        "grpo": "trainers.advantages.group_relative:grpo",
        "dr_grpo": "trainers.advantages.group_relative:dr_grpo",
    },
    "grader": {},
    "dialect": {"chat": "proxies.dialects.chat:Chat", "messages": "proxies.dialects.messages:Messages"},
    "parser": {"hermes": "proxies.parsers.hermes:HermesParser"},
    "upstream": {"embedded": "proxies.upstreams.vllm:VllmUpstream", "vllm": "proxies.upstreams.vllm:VllmUpstream"},
    "service": {
        "proxy": "proxies.app:serve",
        "engine": "trainers.engine:serve",
        "node": "harnessgym.rollout.node:run",
        "train-worker": "trainers.grpo:train",
    },
    "settings": {
        "proxy": "proxies.app:ProxySettings",
        "engine": "trainers.engine:EngineSettings",
        "node": "harnessgym.rollout.node:NodeSettings",
        "train-worker": "trainers.grpo:TrainerSettings",
        "train": "harnessgym.run_config:RunConfig",
    },
}


def names(kind: Kind) -> list[str]:
    """Known names of a kind, sorted."""
    return sorted(REGISTRY[kind])


def load(kind: Kind, name: str) -> Any:
    """The object a name or a `module:attribute` stands for. Raises `ConfigError` with the known names."""
    target = REGISTRY[kind].get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        raise ConfigError(f"There is no {kind.replace('_', ' ')} named {name!r}. {nearest(name, names(kind))}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        extra = {"trainers": "train", "proxies": "proxy", "environments": "envs"}.get(module.split(".")[0], "all")
        hint = f"Install it: pip install 'harnessgym-rl[{extra}]'."
        raise ConfigError(f"Cannot load {kind} {name!r} from {target!r}: no module {error.name!r}. {hint}") from error
    except AttributeError:
        raise ConfigError(f"Cannot load {kind} {name!r}: module {module!r} has no {attribute!r}.") from None
