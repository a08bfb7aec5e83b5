"""Evaluation settings from a run's file: its tasks, one of its harnesses, its sandbox and its sampling."""

from collections.abc import Callable
from typing import Any

from harnessgym.config import nearest
from harnessgym.engine_timeouts import timeouts_of
from harnessgym.errors import ConfigError
from harnessgym.registry import load
from harnessgym.run_config.run import HarnessSection, RunConfig
from harnessgym.supervisor.preparation import choose_sandbox


def as_in_run(config: RunConfig, harness: str | None, notify: Callable[[str], None]) -> dict[str, Any]:
    """Campaign settings with the run's harness of this name, or its first harness.

    `notify` gets a message about the choice. Raises `ConfigError` if the run has no such harness or its
    sandbox cannot be used.
    """
    section = _harness(config, harness)
    if harness is None and len(config.harnesses) > 1:
        others = ", ".join(each.name for each in config.harnesses if each is not section)
        notify(f"Harness: {section.name}, the first of the run's. --harness takes another: {others}.")
    return {
        "tasks": config.tasks.set,
        "unfit": config.tasks.unfit,
        "limit": config.evaluation.tasks or None,
        "harness": section.type,
        "harness_settings": section.settings,
        "sandbox": choose_sandbox(config, notify, lambda backend: load("sandbox", backend).unavailable()),
        "temperature": config.sampling.temperature,
        "max_tokens": config.sampling.max_tokens,
        "max_length": config.engine.max_length,
        "at_once": config.node.max_running,
        "retries": config.node.max_attempts - 1,
        "seed": config.seed,
        "model": config.policy.name,
        "session": config.session,
    } | timeouts_of(config.engine)


def _harness(config: RunConfig, name: str | None) -> HarnessSection:
    if name is None:
        return config.harnesses[0]
    found = next((each for each in config.harnesses if each.name == name), None)
    if found is None:
        raise ConfigError(
            f"The run has no harness {name!r}. {nearest(name, [each.name for each in config.harnesses])}"
        )
    return found
