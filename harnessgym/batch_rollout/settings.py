"""Settings of a campaign, and the tasks they choose."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.errors import ConfigError
from harnessgym.grading.integrity import refusal
from harnessgym.run_config.run import DemandedIntegrity, SecondOpinion
from harnessgym.run_config.session import SessionOptions
from harnessgym.task import Split, Task
from harnessgym.tasks.payload import payload_of
from harnessgym.tasks.source import chosen as tasks_named
from harnessgym.tasks.source import remarks_of, task_set
from harnessgym.validation.baseline import fitness


class CampaignSettings(EngineTimeouts):
    """Settings of a campaign."""

    folder: Path
    """Folder for all output."""
    tasks: str | None = None
    """A registered task set, `module:Class`, or a file or folder. None runs only what comes over HTTP."""
    split: Split | Literal["all"] = "all"
    task: tuple[str, ...] = ()
    """Only these tasks, by id or by the end of the id after a slash. Empty means all."""
    unfit: bool = False
    """Whether to run tasks that failed `harnessgym tasks check`."""
    limit: int | None = Field(None, gt=0)
    """Run only this many tasks, the first ones."""
    harness: str = "command"
    """Registered harness, or `module:Class`."""
    harness_settings: dict[str, Any] = Field(default_factory=dict)
    sandbox: str = "bubblewrap"
    hidden: tuple[Path, ...] = ()
    """Files and folders that no sandbox shows; see `SandboxSection.hidden`."""
    samples: int = Field(1, gt=0)
    """Rollouts per task."""
    seed: int = 0
    at_once: int = Field(8, gt=0)
    """Harnesses that run at one time."""
    upstream: str | None = None
    """What answers the calls; see `wrapping.upstream.KINDS`."""
    policy: Path | None = None
    """Model folder, if the upstream does not report it."""
    parser: str = "auto"
    """Parser of the policy's answers, by the grammar of their tool calls (docs/models.md)."""
    model: str = "policy"
    """Model name that harnesses see."""
    temperature: float = Field(1.0, ge=0)
    max_tokens: int = Field(4_096, gt=0)
    """Most new tokens per call."""
    max_length: int | None = None
    """Most tokens of prompt and completion together; the engine's limit if not given."""
    timeout_s: float | None = Field(None, gt=0)
    """Seconds that a harness may run, in place of the task's own limit."""
    retries: int = Field(2, ge=0)
    """Retries of a rollout that fails for reasons other than the agent."""
    serve: str = ""
    """`HOST:PORT` of the HTTP endpoints; empty serves none."""
    second_opinion: SecondOpinion = "off"
    """Whether what is rewarded is also compared with the solution; see `NodeSection.second_opinion`."""
    integrity: DemandedIntegrity = "any"
    """Which rewards count; see `NodeSection.integrity`."""
    session: SessionOptions = SessionOptions(constraints="prompt")
    """How the proxy treats calls. Its `upstream` and `replay` are set by the campaign's upstream."""


def chosen_tasks(settings: CampaignSettings) -> tuple[list[Task], list[str]]:
    """The tasks to run, and remarks about the set. Raises `ConfigError` if there are none."""
    if settings.tasks is None:
        return [], []
    whole_set = task_set(settings.tasks)
    named = tasks_named(whole_set, settings.task)
    chosen = [task for task in named if settings.split in ("all", task.split)]
    if not chosen:
        there = " and ".join(
            f"{count} in {split!r}" for split, count in Counter(task.split for task in named).items()
        )
        hint = f"There are {there}. Give another --split." if there else "Give other --tasks."
        raise ConfigError(f"The tasks {settings.tasks!r} have none in the split {settings.split!r}. {hint}")
    fit = fitness(settings.tasks, whole_set, chosen)
    remarks = remarks_of(whole_set)
    if fit.refusal and not settings.unfit:
        chosen = [task for task in chosen if task.id not in fit.failed]
        remarks.append(f"left out: {fit.refusal}\n--unfit runs them all the same.")
    required = settings.second_opinion == "required"
    if required and fit.opinion_refusal and not settings.unfit:
        chosen = [task for task in chosen if task.id not in fit.no_opinion]
        remarks.append(f"left out: {fit.opinion_refusal}\n--unfit runs them all the same.")
    if not chosen:
        why = fit.refusal or fit.opinion_refusal
        raise ConfigError(f"No task is left to run. {why}\n--unfit runs them all the same.")
    chosen = chosen[: settings.limit]
    left = fit.of(chosen)
    if left.warning:
        remarks.append(left.warning)
    if required and left.opinion_warning:
        remarks.append(left.opinion_warning)
    if weak := refusal(chosen, settings.second_opinion, settings.integrity):
        raise ConfigError(weak)
    if settings.timeout_s is None:
        return chosen, remarks
    return [replace(task, limits=replace(task.limits, wall_s=settings.timeout_s)) for task in chosen], remarks


def digest_of(tasks: Sequence[Task]) -> str:
    """Hash in hex that changes with any part of any task."""
    payload = json.dumps([payload_of(task) for task in tasks], sort_keys=True)
    return hashlib.blake2b(payload.encode(), digest_size=8).hexdigest()
