"""Reads one Harbor task folder as a `Task`, and notes the parts that have no effect here."""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harnessgym.config import validate
from harnessgym.errors import ConfigError, TaskError
from harnessgym.file_bundle import bundle
from harnessgym.grading import reward_range
from harnessgym.grading.verifiers.harbor import KEY
from harnessgym.grading.verifiers.test_script import VerifierScript
from harnessgym.grading.verifiers.tools import install, tools_of
from harnessgym.task import GradingImage, Hook, Limits, Setup, Task, TaskStep
from harnessgym.tasks.harbor_place import (
    HarborContainer,
    graded,
    grading_place,
    place_of,
    refuse,
    substituted_all,
)
from harnessgym.tasks.harbor_scripts import instruction, solution, waiting, working_files
from harnessgym.tasks.harbor_table import Collect, HarborTable, StepTable, VerifierTable, unknown
from harnessgym.tasks.notes import Notes

GRADER = "harnessgym.grading.verifiers.harbor:verifier"
_AGENT_S = 600.0
"""Seconds for an agent if the task sets none."""
_SHARED = (
    "tests are run in a fresh container that holds what the agent left in its working folder and "
    "/logs/artifacts, where Harbor would use the agent's own; harbor_shared@PATH does as Harbor"
)
TESTS = "test_files"
"""Key of the tests in a task's metadata."""
_SCRIPT = "test.sh"
_FOLDERS = ("mkdir", "-p", "/logs/agent", "/logs/verifier", "/logs/artifacts")


def read_task(folder: Path, prefix: str, notes: Notes, *, shared: bool = False) -> Task:
    """Reads the task of one folder. Raises TaskError with the file, the key, and what to do."""
    where = folder / "task.toml"
    raw = _raw(where)
    table = _checked(raw, where)
    refuse(table.environment, folder, where)
    own = table.verifier.environment_mode != "separate" and not _own_image(table, folder)
    in_agents = shared and own
    place = place_of(table.environment, folder / "environment", where, notes)
    testing = grading_place(table.verifier, folder, place, where, notes)
    left = graded(
        [*table.artifacts, *(each for step in table.steps for each in step.artifacts)],
        testing,
        where,
        notes,
        all_of=own,
    )
    reading = _Reading(folder, where, table, testing, in_agents)
    judged = {} if table.steps else reading.judged(table.verifier)
    _tell(table, folder, notes, own=own and not in_agents)
    steps = tuple(reading.step(step) for step in table.steps)
    tests = [each[TESTS] for each in (judged, *(step.metadata for step in steps)) if each.get(TESTS)]
    kept = {
        "unknown": dict(unknown(table)),
        "task": table.task,
        "metadata": table.metadata,
        "source": table.source,
    }
    return Task(
        id=f"{prefix}/{folder.resolve().name}".lstrip("/"),
        instruction=instruction(folder, needed=not steps),
        image=place.image,
        home=place.home,
        folders=left.folders,
        collect=left.collect,
        artifacts=left.artifacts,
        env=place.env,
        limits=_limits(table),
        setup=Setup((_FOLDERS, *waiting(table.environment.healthcheck))),
        grader=GRADER,
        verifier="shared" if in_agents else "separate",
        solution=None if steps else solution(folder / "solution", reading.solution_env),
        hooks=_hooks(table.verifier.collect, where),
        grading=GradingImage(
            testing.image if testing.image != place.image else None, install(tools_of(tests))
        ),
        steps=steps,
        step_reward=table.multi_step_reward_strategy or "mean",
        metadata={
            **(judged or steps[0].metadata),
            **_declared(table, where),
            "toml": _json({key: value for key, value in kept.items() if value}),
        },
    )


class _Reading:
    """The data that all steps of one folder share."""

    def __init__(
        self, folder: Path, where: Path, table: HarborTable, testing: HarborContainer, shared: bool
    ) -> None:
        self.folder = folder
        self.where = where
        self.table = table
        self.testing = testing
        self.shared = shared
        self.solution_env = substituted_all(table.solution.env, os.environ, f"{where}: solution.env")

    def judged(self, verifier: VerifierTable, *more: Path) -> dict[str, Any]:
        """The metadata for grading the task, or a step, whose tests are copied over the task's."""
        env = substituted_all(verifier.env, os.environ, f"{self.where}: verifier.env")
        spec = VerifierScript(
            env={**self.testing.env, **env},
            timeout_s=verifier.timeout_sec,
            root=verifier.user in (None, "root", 0, "0"),
        )
        if self.testing.has_tests:
            return {KEY: spec.model_copy(update={"laid": False}).model_dump(mode="json")}
        folders = [self.folder / "tests", *more]
        if not any((each / _SCRIPT).is_file() for each in folders):
            raise TaskError(f"{folders[-1] / _SCRIPT} is not there. A Harbor task is graded by it.")
        tests = bundle(*folders)
        spec = spec.model_copy(update={"rest": tests.rest, "executable": tests.executable})
        return {KEY: spec.model_dump(mode="json"), TESTS: dict(tests.texts)}

    def step(self, step: StepTable) -> TaskStep:
        """One of several steps, from `steps/NAME`."""
        folder = self.folder / "steps" / step.name
        if not folder.is_dir():
            raise TaskError(f"{self.where}: steps: there is no folder {folder}. Every step has one.")
        verifier = step.verifier.model_copy(update=_inherited(self.table.verifier, step.verifier))
        least = step.min_reward
        files, setup = working_files(folder / "workdir", *waiting(step.healthcheck))
        return TaskStep(
            name=step.name,
            instruction=instruction(folder, needed=True),
            files=files,
            setup=setup,
            solution=solution(folder / "solution", self.solution_env)
            or solution(self.folder / "solution", self.solution_env),
            metadata=self.judged(verifier, folder / "tests"),
            wall_s=step.agent.timeout_sec or self.table.agent.timeout_sec,
            min_reward={}
            if least is None
            else dict(least)
            if isinstance(least, Mapping)
            else {"reward": float(least)},
            hooks=_hooks(step.verifier.collect, self.where),
        )


def _declared(table: HarborTable, where: Path) -> dict[str, Any]:
    """The range of the reward that `[metadata]` declares, if it does. Raises TaskError."""
    if reward_range.KEY not in table.metadata:
        return {}
    return {reward_range.KEY: list(reward_range.reward_range(table.metadata, str(where)))}


def _inherited(task: VerifierTable, step: VerifierTable) -> dict[str, Any]:
    """The settings that a step's verifier inherits from the task's."""
    step_keys = step.model_fields_set
    rest = {key: getattr(task, key) for key in ("timeout_sec", "user") if key not in step_keys}
    return {**rest, "env": {**task.env, **step.env}}


def _raw(where: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(where.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TaskError(f"There is no {where}. A Harbor task is a folder with a task.toml.") from None
    except ValueError as error:
        raise TaskError(f"{where} cannot be read: {error}.") from None


def _checked(raw: dict[str, Any], where: Path) -> HarborTable:
    if "tests" in raw:
        raise TaskError(f"{where} has checks in `tests`, so it is a native task: read it with native@PATH.")
    try:
        return validate(HarborTable, raw, str(where))
    except ConfigError as error:
        raise TaskError(str(error)) from error


def _own_image(table: HarborTable, folder: Path) -> bool:
    named = table.verifier.environment is not None
    return named or any((folder / "tests" / name).is_file() for name in ("Dockerfile", "docker-compose.yaml"))


def _limits(table: HarborTable) -> Limits:
    environment = table.environment
    limits = Limits(wall_s=table.agent.timeout_sec or _AGENT_S)
    resources = {
        "cpus": environment.cpus,
        "memory_mb": environment.memory_mb,
        "disk_mb": environment.storage_mb,
    }
    changes: dict[str, Any] = {key: value for key, value in resources.items() if value is not None}
    return replace(limits, **changes)


def _hooks(collects: Sequence[Collect], where: Path) -> tuple[Hook, ...]:
    """The hooks of the collect commands, without duplicates."""
    for collect in collects:
        if collect.service != "main":
            raise TaskError(
                f"{where}: verifier.collect: there is no service {collect.service!r} here, only main. Take "
                "it out."
            )
    hooks = [
        Hook(("sh", "-c", each.command), root=each.user in ("root", 0, "0"), timeout_s=each.timeout_sec)
        for each in collects
    ]
    return tuple(dict.fromkeys(hooks))


def _tell(table: HarborTable, folder: Path, notes: Notes, *, own: bool) -> None:
    """Notes everything that was read and has no effect."""
    for key, _ in unknown(table):
        notes.say(f"task.toml: {key} is not known; it is kept in the metadata and has no effect")
    if own:
        notes.say(_SHARED)
    environment = table.environment
    if environment.network_mode in (None, "public") and table.agent.network_mode in (None, "public"):
        notes.say(
            "the agent reaches nothing but the model, where Harbor's default gives it the whole network"
        )
    elif "allowlist" in (environment.network_mode, table.agent.network_mode):
        notes.say("allowed_hosts are not in the agent's reach: it reaches nothing but the model")
    if "public" in (table.verifier.network_mode, (table.verifier.environment or environment).network_mode):
        notes.say("tests reach no network; packages named in their scripts are put into the image")
    for present, what in (
        (
            table.agent.user is not None,
            "agent.user has no effect: agents run as the sandbox's user, who is not root",
        ),
        (environment.skills_dir, "environment.skills_dir is not given to the agent; it lies in the image"),
        (environment.mcp_servers, "environment.mcp_servers are not given to the agent"),
        (
            any(step.verifier.environment or step.verifier.environment_mode for step in table.steps),
            (
                "environment and environment_mode of a step's verifier have no effect: all steps are "
                "tested as the task says"
            ),
        ),
        (
            (folder / "trajectory.json").is_file(),
            "trajectory.json is not given to the agent: every rollout starts from scratch",
        ),
    ):
        if present:
            notes.say(what)


def _json(value: Any) -> Any:
    """Converts to JSON values. TOML's other types become text."""
    return json.loads(
        json.dumps(
            value, default=lambda each: each.model_dump() if hasattr(each, "model_dump") else str(each)
        )
    )
