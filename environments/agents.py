"""Agents for checks and benchmarks of the environments: one acts at random, one performs the solutions."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium

from harnessgym.errors import TaskError
from harnessgym.task import Split, Task
from harnessgym.tasks.source import task_set


class ScriptedPlayer(Protocol):
    """Chooses actions."""

    def begin(self, info: Mapping[str, Any]) -> None:
        """Called when an episode begins, with the `info` of the reset."""
        ...

    def act(self, observation: Any) -> str:
        """The next action."""
        ...


class RandomAgent:
    """Samples the action space."""

    def __init__(self, space: gymnasium.Space[str], seed: int = 0) -> None:
        self._space = space
        space.seed(seed)

    def begin(self, info: Mapping[str, Any]) -> None:
        """Does nothing."""

    def act(self, observation: Any) -> str:  # noqa: ARG002
        """See `ScriptedPlayer.act`."""
        return self._space.sample()


class GoldAgent:
    """Performs each task's solution, action by action, and ends the episode.

    With `harness`, it answers the requests of the plain agent (`environments/harness/agent.py`) instead.
    """

    def __init__(self, tasks: str, split: Split = "train", *, harness: bool = False) -> None:
        self._tasks = {task.id: task for task in task_set(tasks).tasks(split)}
        self._lines = _completions if harness else _actions
        self._left: Iterator[str] = iter(())

    def begin(self, info: Mapping[str, Any]) -> None:
        """Looks up the solution. Raises TaskError if the task has none."""
        self._left = self._lines(self._tasks[info["task_id"]])

    def act(self, observation: Any) -> str:  # noqa: ARG002
        """See `ScriptedPlayer.act`."""
        return next(self._left)


@dataclass(slots=True)
class Played:
    """The result of `play`."""

    steps: int = 0
    rewards: list[float] = field(default_factory=list)
    """Rewards of the graded episodes."""
    stopped: dict[str, int] = field(default_factory=dict)
    """Number of truncated episodes by reason."""


def play(env: gymnasium.Env[Any, str], agent: ScriptedPlayer, steps: int, seed: int = 0) -> Played:
    """Plays `steps` steps, over as many episodes as needed. The last episode may stay unfinished."""
    played = Played()
    running = False
    observation: Any = None
    while played.steps < steps:
        if not running:
            observation, info = env.reset(seed=seed if played.steps == 0 else None)
            agent.begin(info)
        observation, reward, terminated, truncated, info = env.step(agent.act(observation))
        played.steps += 1
        running = not (terminated or truncated)
        if terminated:
            played.rewards.append(float(reward))
        elif truncated:
            played.stopped[info["reason"]] = played.stopped.get(info["reason"], 0) + 1
    return played


def _actions(task: Task) -> Iterator[str]:
    solution = _solution(task)
    for path, text in solution.files.items():
        yield json.dumps({"write": path, "text": text})
    for command in solution.run:
        yield json.dumps({"run": shlex.join(command)})
    yield json.dumps({"submit": True})


def _completions(task: Task) -> Iterator[str]:
    solution = _solution(task)
    for path, text in solution.files.items():
        folder = shlex.quote(path.rpartition("/")[0] or ".")
        yield _shell(f"mkdir -p {folder} && printf %s {shlex.quote(text)} > {shlex.quote(path)}")
    for command in solution.run:
        yield _shell(shlex.join(command))
    yield "Done."


def _shell(command: str) -> str:
    return json.dumps({"content": "", "tool_calls": [{"name": "shell", "arguments": {"command": command}}]})


def _solution(task: Task) -> Any:
    if task.solution is None:
        raise TaskError(f"Task {task.id!r} has no solution to perform.")
    return task.solution
