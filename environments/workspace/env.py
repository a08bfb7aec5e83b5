"""Tasks as a gymnasium environment: `harnessgym/SWE-v0`, `harnessgym/Code-v0`.

An episode is one task in one sandbox. `reset` chooses the task and sets up the sandbox. `step` runs a
command or changes a file. Submitting kills everything in the sandbox and grades the workspace in a fresh
one. Only that gives a reward. An episode that ends by a limit or because a machine failed is truncated with
a reason and never graded.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from environments.workspace.action import (
    LONGEST,
    ActionSpace,
    ActionStatus,
    Misread,
    Observation,
    SubmitAction,
    observation,
    parse,
    space,
)
from environments.workspace.backend_pool import BackendPool, acquire, release
from environments.workspace.episode import ActionOutcome, Episode
from harnessgym.config import nearest
from harnessgym.errors import CapabilityError, ConfigError, HarnessGymError
from harnessgym.outcome.failure import Phase, cause_of_error
from harnessgym.task import Grade, Split, Task
from harnessgym.tasks.source import task_set

_STILLBORN = 3
"""Episodes in a row that fail to begin before it is an error."""
_LEAST_S = 0.05


class WorkspaceEnv(gymnasium.Env[Observation, str]):
    """A task set as a gymnasium environment. See the module, `action` and `observation`.

    ```python
    env = gymnasium.make("environments:harnessgym/SWE-v0")
    observation, info = env.reset(seed=7)
    observation, reward, terminated, truncated, info = env.step('{"run": "ls"}')
    ```
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  # as gymnasium declares it

    def __init__(
        self,
        tasks: str = "swe",
        split: Split = "train",
        sandbox: str = "bubblewrap",
        sandbox_settings: Mapping[str, Any] | None = None,
        max_steps: int = 50,
        wall_s: float = 1_800.0,
        render_mode: str | None = None,
    ) -> None:
        """`tasks` is a spec for `harnessgym.tasks.source.task_set`, `sandbox` a registered backend.

        An episode is truncated after `max_steps` actions, or `wall_s` seconds after the reset. Nothing is
        opened before the first reset, so an environment can be made in one process and used in a fork of it.
        """
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ConfigError(f"There is no render mode {render_mode!r}. {nearest(render_mode, ['ansi'])}")
        if max_steps < 1 or not wall_s > 0:
            raise ConfigError(
                f"max_steps={max_steps}, wall_s={wall_s}: an episode needs at least one step, and some time."
            )
        self._spec_of_tasks = tasks
        self._split = split
        self._sandbox = sandbox
        self._sandbox_settings = dict(sandbox_settings or {})
        self._max_steps = max_steps
        self._wall_s = wall_s
        self.render_mode = render_mode
        self.action_space = ActionSpace()
        self.observation_space = space()
        self._tasks: Sequence[Task] | None = None
        self._pool: BackendPool | None = None
        self._episode: Episode | None = None
        self._failure: tuple[str, str] | None = None
        """Cause and sentence for an episode that could not begin. Its first step truncates it."""
        self._failures = 0
        self._running = False
        self._steps = 0
        self._deadline = 0.0
        self._shown = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode of the task that the seed chooses, or that `options["task_id"]` names.

        Raises ConfigError for an unknown task or option, CapabilityError for a task that this backend cannot
        run, and the last error if several episodes in a row cannot begin. A single episode that cannot begin
        is truncated by its first step instead, so that vectorised training continues.
        """
        super().reset(seed=seed)
        task = self._chosen(options or {})
        self._end_episode()
        try:
            self._begin(task)
        except CapabilityError:
            raise
        except (HarnessGymError, OSError) as error:
            self._failures += 1
            if self._failures >= _STILLBORN or self._pool is None:
                raise
            self._failure = str(cause_of_error(error, "open")), str(error)
        else:
            self._failures = 0
            self._failure = None
        self._running, self._steps, self._deadline = True, 0, time.monotonic() + self._wall_s
        self._shown = f"--- {task.id}\n{task.instruction}\n"
        info = self._info(task) | {"instruction": task.instruction}
        return observation(task.instruction, "", ActionStatus.READY), info

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Executes an action. Raises ResetNeeded if there is no running episode."""
        if not self._running:
            raise ResetNeeded("There is no running episode. Call reset() before step().")
        self._steps += 1
        if self._episode is None:
            assert self._failure is not None
            return self._stopped("infrastructure", *self._failure)
        meant = (
            parse(action)
            if len(action) <= LONGEST
            else Misread(f"An action has at most {LONGEST} characters.")
        )
        phase: Phase = "run"
        try:
            if isinstance(meant, SubmitAction):
                phase = "evaluate"
                return self._submitted(self._call(self._episode.judged))
            outcome = self._carried_out(meant)
        except (HarnessGymError, OSError, MemoryError) as error:
            return self._stopped("infrastructure", str(cause_of_error(error, phase)), str(error))
        self._shown = f"{self._shown}$ {action}\n{outcome.output}\n"[-20_000:]
        seen = observation(outcome.output, outcome.diff, outcome.status, outcome.missing)
        info = self._info(self._episode.task) | {"exit_code": outcome.code}
        if self._steps < self._max_steps and time.monotonic() < self._deadline:
            return seen, 0.0, False, False, info
        reason = "step_limit" if self._steps >= self._max_steps else "wall_clock"
        self._end_episode()
        return seen, 0.0, False, True, info | {"reason": reason}

    def render(self) -> str | None:
        """The episode so far as text, if `render_mode` is "ansi"."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Ends the episode and gives the pool back. May be called again; `reset` works after it."""
        left = self._pool
        self._pool = None
        if left is None:
            return
        if left.ours:
            self._pool = left
            self._end_episode()
            self._pool = None
        release(left)

    def __del__(self) -> None:
        """Closes an environment that nobody closed."""
        if getattr(self, "_pool", None) is not None:
            with contextlib.suppress(Exception):
                self.close()

    def _chosen(self, options: dict[str, Any]) -> Task:
        unknown = sorted(set(options) - {"task_id"})
        if unknown:
            raise ConfigError(f"reset() has no option {unknown[0]!r}. {nearest(unknown[0], ['task_id'])}")
        if self._tasks is None:
            self._tasks = _playable(self._spec_of_tasks, self._split)
        if "task_id" not in options:
            return self._tasks[int(self.np_random.integers(len(self._tasks)))]
        wanted = str(options["task_id"])
        chosen_task = next((task for task in self._tasks if task.id == wanted), None)
        if chosen_task is None:
            known = [task.id for task in self._tasks]
            raise ConfigError(
                f"There is no task {wanted!r} in {self._spec_of_tasks!r} ({self._split}). "
                f"{nearest(wanted, known)}"
            )
        return chosen_task

    def _begin(self, task: Task) -> None:
        if self._pool is None or not self._pool.ours:
            self._pool = acquire(self._sandbox, self._sandbox_settings)
        self._episode = self._pool.call(
            self._pool.begin, f"{self._spec_of_tasks} {self._split} {task.id}", task
        )

    def _end_episode(self) -> None:
        """Ends the episode. Its sandbox is removed in the background."""
        episode = self._episode
        self._episode = None
        self._running = False
        if episode is not None and self._pool is not None and self._pool.ours:
            self._pool.call(self._pool.end, episode)

    def _call(self, function: Any, *args: Any) -> Any:
        assert self._pool is not None
        return self._pool.call(function, *args)

    def _carried_out(self, meant: Any) -> ActionOutcome:
        assert self._episode is not None
        left = max(_LEAST_S, self._deadline - time.monotonic())
        if isinstance(meant, Misread):
            return ActionOutcome(ActionStatus.MISREAD, meant.why, self._call(self._episode.diff))
        outcome: ActionOutcome = self._call(
            self._episode.act, meant, min(left, self._episode.task.limits.wall_s)
        )
        return outcome

    def _submitted(self, grade: Grade) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        assert self._episode is not None
        info = self._info(self._episode.task)
        info |= {"verdict": "valid" if grade.tampered is None else "tampered", "detail": grade.tampered or ""}
        info["rewards"] = dict(grade.rewards)
        reward = float(grade.rewards["reward"]) if grade.tampered is None else 0.0
        message = f"Submitted: {info['verdict']}, reward {reward:g}."
        self._shown += f"{message}\n"
        self._end_episode()
        return observation(message, "", ActionStatus.SUBMITTED), reward, True, False, info

    def _stopped(
        self, reason: str, cause: str, detail: str
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Truncates the episode for a failure that is not the agent's.

        Gymnasium requires a number, so the reward is 0.0; the verdict "none" says that it is not valid.
        """
        info = self._info(self._episode.task if self._episode is not None else None)
        self._end_episode()
        self._shown += f"Stopped: {detail}\n"
        seen = observation(detail, "", ActionStatus.STOPPED)
        return seen, 0.0, False, True, info | {"reason": reason, "cause": cause, "detail": detail}

    def _info(self, task: Task | None) -> dict[str, Any]:
        """Always has the same keys, so that vectorised environments can stack them."""
        return {
            "task_id": "" if task is None else task.id,
            "steps": self._steps if self._running else 0,
            "exit_code": 0,
            "verdict": "none",
            "reason": "",
            "cause": "",
            "detail": "",
        }


def _playable(spec: str, split: Split) -> Sequence[Task]:
    """The tasks without steps. Raises ConfigError if there are none."""
    tasks = [task for task in task_set(spec).tasks(split) if not task.steps]
    if not tasks:
        raise ConfigError(
            f"The tasks {spec!r} have none in the split {split!r} that an environment can run. Give another "
            "split."
        )
    return tasks
