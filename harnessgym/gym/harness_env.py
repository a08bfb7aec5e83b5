"""A harness as a gymnasium environment: the observation is its next model request, the action the completion.

The real harness runs in a sandbox against a proxy, as in any rollout, and waits until `step` answers its
request. So a gymnasium agent can take the place of the model in any harness. Concurrent requests, from
sub-agents, are observed one at a time in order of arrival. When the harness ends, its workspace is graded,
and that is the reward.
"""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from harnessgym.config import nearest
from harnessgym.errors import CapabilityError, ConfigError, HarnessGymError
from harnessgym.gym.harness_episode import HarnessEpisode, SharedResources, Waiting, desk
from harnessgym.gym.portal import Portal
from harnessgym.gym.text_space import ShortText, fit
from harnessgym.outcome.failure import Cause, Phase, cause_of_error
from harnessgym.task import Split, Task
from harnessgym.tasks.source import task_set

REQUEST = 65_536
"""Most characters of a request. In longer ones the texts of messages are cut in the middle."""
LONGEST = 65_536
"""Most characters of a completion."""
_STILLBORN = 3
_NOTHING = "{}"
_LEAST = 64


class HarnessEnv(gymnasium.Env[str, str]):
    """A harness as an environment; see the module.

    Observations are JSON objects with `model`, `messages`, `tools` and `tool_choice`, and `{}` at the end. An
    action is a completion as the policy would write it, or a JSON object with `content`, `reasoning` and
    `tool_calls` (each a `name` and `arguments`). An object with `token_ids`, and optionally `logprobs` and a
    `version`, can be trained on. An invalid action leaves the request waiting: the next observation is the
    same request, and the info says why.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012  # as gymnasium declares it

    def __init__(
        self,
        tasks: str = "shell",
        split: Split = "train",
        harness: str = "command",
        harness_settings: Mapping[str, Any] | None = None,
        sandbox: str = "bubblewrap",
        hidden: Sequence[str | Path] = (),
        max_steps: int = 64,
        wall_s: float = 1_800.0,
        policy: str | Path | None = None,
        folder: str | Path | None = None,
        render_mode: str | None = None,
    ) -> None:
        """`harness` and its settings are those of `harnessgym rollout`. `policy` is a model folder whose chat
        template and tokenizer are used. `hidden` names files and folders that no sandbox shows.

        Traces go to `folder`, which must be this environment's own; without it they are discarded. An episode
        is truncated after `max_steps` actions or `wall_s` seconds of the harness. Nothing is opened before
        the first reset.
        """
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ConfigError(f"There is no render mode {render_mode!r}. {nearest(render_mode, ['ansi'])}")
        if max_steps < 1 or not wall_s > 0:
            raise ConfigError(
                f"max_steps={max_steps}, wall_s={wall_s}: an episode needs at least one step, and some time."
            )
        self._spec_of_tasks = tasks
        self._split = split
        self._harness = harness
        self._harness_settings = dict(harness_settings or {})
        self._sandbox = sandbox
        self._hidden = tuple(map(Path, hidden))
        self._max_steps = max_steps
        self._wall_s = wall_s
        self._policy, self._folder = (None if path is None else Path(path) for path in (policy, folder))
        self.render_mode = render_mode
        self.action_space = ShortText(LONGEST)
        self.observation_space = ShortText(REQUEST)
        self._tasks: Sequence[Task] | None = None
        self._pid = 0
        self._open: ExitStack | None = None
        self._portal: Portal
        self._desk: SharedResources
        self._episode: HarnessEpisode | None = None
        self._waiting: Waiting | None = None
        self._failure: tuple[str, str] | None = None
        self._failures = 0
        self._running = False
        self._steps = 0
        self._deadline = 0.0
        self._shown = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the harness on the task that the seed or `options["task_id"]` chooses; its first request.

        Raises `ConfigError` for an unknown task or option, and the underlying error when several episodes in
        a row cannot begin. A single episode that cannot begin, or a harness that ends without a request, is
        truncated by the first step instead.
        """
        super().reset(seed=seed)
        task = self._chosen(options or {})
        self._abandon()
        phase: Phase = "open"
        try:
            self._opened()
            phase = "prepare"
            self._begin(task)
        except (HarnessGymError, OSError) as error:
            self._failures += 1
            if (
                isinstance(error, ConfigError | CapabilityError)
                or self._failures >= _STILLBORN
                or phase == "open"
            ):
                raise
            self._failure = str(cause_of_error(error, phase)), str(error)
        else:
            self._failures = 0
            self._failure = None
        self._running, self._steps, self._deadline = True, 0, time.monotonic() + self._wall_s
        self._shown = f"--- {task.id}\n{task.instruction}\n"
        return self._seen(), self._info(task) | {"instruction": task.instruction}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the request. Raises `ResetNeeded` if there is no running episode."""
        if not self._running:
            raise ResetNeeded("There is no running episode. Call reset() before step().")
        self._steps += 1
        if self._failure is not None:
            return self._stopped("infrastructure", *self._failure)
        assert self._episode is not None
        phase: Phase = "run"
        try:
            if self._waiting is not None:
                problem = self._portal.call(self._episode.answer, self._waiting.call, action)
                if problem is not None:
                    return self._refused(problem)
                self._shown = f"{self._shown}> {action}\n"[-20_000:]
                self._waiting = self._portal.call(self._episode.next)
            if self._waiting is None:
                phase = "evaluate"
                return self._ended()
        except (HarnessGymError, OSError, MemoryError) as error:
            return self._stopped("infrastructure", str(cause_of_error(error, phase)), str(error))
        return self._went_on({})

    def render(self) -> str | None:
        """The episode so far as text, with `render_mode="ansi"`."""
        return self._shown if self.render_mode == "ansi" else None

    def close(self) -> None:
        """End the harness, the proxy and the backend. May be called twice; `reset` opens them again."""
        opened = self._open
        self._open = None
        # In a forked child the portal's thread does not exist, and the parent still owns the processes.
        if opened is None or self._pid != os.getpid():
            return
        with opened:
            self._open = opened
            self._abandon()
            self._open = None

    def __del__(self) -> None:
        """Close an environment that was not closed."""
        # The constructor may have raised before `_open` existed, and errors in `__del__` help nobody.
        if getattr(self, "_open", None) is not None:
            with contextlib.suppress(Exception):
                self.close()

    def _opened(self) -> None:
        if self._open is not None and self._pid == os.getpid():
            return
        with ExitStack() as stack:
            folder = self._folder or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="harnessgym-env-"))
            )
            self._portal = stack.enter_context(Portal())
            opening = desk(
                folder.resolve(),
                self._harness,
                self._harness_settings,
                self._sandbox,
                self._policy,
                self._hidden,
            )
            self._desk = stack.enter_context(self._portal.enter(opening))
            # Only now does the environment own them: if opening fails halfway, the stack has closed the rest.
            self._open, self._pid = stack.pop_all(), os.getpid()

    def _chosen(self, options: dict[str, Any]) -> Task:
        unknown = sorted(set(options) - {"task_id"})
        if unknown:
            raise ConfigError(f"reset() has no option {unknown[0]!r}. {nearest(unknown[0], ['task_id'])}")
        if self._tasks is None:
            self._tasks = [
                task for task in task_set(self._spec_of_tasks).tasks(self._split) if not task.steps
            ]
        if not self._tasks:
            raise ConfigError(
                f"The tasks {self._spec_of_tasks!r} have none in the split {self._split!r}. Give another "
                "split."
            )
        if "task_id" not in options:
            return self._tasks[int(self.np_random.integers(len(self._tasks)))]
        known = {task.id: task for task in self._tasks}
        wanted = str(options["task_id"])
        if wanted not in known:
            raise ConfigError(
                f"There is no task {wanted!r} in {self._spec_of_tasks!r} ({self._split}). "
                f"{nearest(wanted, list(known))}"
            )
        return known[wanted]

    def _begin(self, task: Task) -> None:
        episode = HarnessEpisode(self._desk, task)
        self._portal.call(episode.begin, self._wall_s, self._max_steps + 1)
        self._episode = episode
        self._waiting = self._portal.call(episode.next)

    def _end_episode(self) -> None:
        episode = self._episode
        self._episode = None
        self._waiting = None
        self._running = False
        if episode is not None and self._open is not None and self._pid == os.getpid():
            self._portal.call(episode.aclose)

    def _abandon(self) -> None:
        """End the episode, and ignore errors from a proxy or sandbox that has already ended."""
        with contextlib.suppress(HarnessGymError, OSError):
            self._end_episode()

    def _refused(self, problem: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._went_on({"status": "misread", "detail": problem})

    def _went_on(self, more: dict[str, Any]) -> tuple[str, float, bool, bool, dict[str, Any]]:
        assert self._episode is not None
        info = self._info(self._episode.task) | more
        late = time.monotonic() >= self._deadline
        if self._steps < self._max_steps and not late:
            return self._seen(), 0.0, False, False, info
        seen = self._seen()
        self._abandon()
        return seen, 0.0, False, True, info | {"reason": "wall_clock" if late else "step_limit"}

    def _ended(self) -> tuple[str, float, bool, bool, dict[str, Any]]:
        assert self._episode is not None
        episode = self._episode
        if episode.timed_out:
            info = self._info(episode.task) | {"status": "ended", "reason": "wall_clock"}
            self._abandon()
            return _NOTHING, 0.0, False, True, info
        grade, stop_reason = self._portal.call(episode.judged)
        verdict = "valid" if grade.tampered is None else "tampered"
        reward = float(grade.rewards["reward"]) if grade.tampered is None else 0.0
        info = self._info(episode.task) | {
            "status": "ended",
            "verdict": verdict,
            "stop_reason": str(stop_reason),
        }
        info |= {"detail": grade.tampered or "", "rewards": dict(grade.rewards)}
        self._abandon()
        self._shown += f"Ended: {stop_reason}, {verdict}, reward {reward:g}.\n"
        return _NOTHING, reward, True, False, info

    def _stopped(self, reason: str, cause: str, detail: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Truncate after an infrastructure failure. Gymnasium needs a number, so the reward is 0.0; the
        info's verdict tells that it is not one.
        """
        info = self._info(self._episode.task if self._episode is not None else None)
        if self._episode is not None:
            with contextlib.suppress(HarnessGymError, OSError):
                self._portal.call(self._episode.failed, Cause(cause), detail)
        self._abandon()
        return (
            _NOTHING,
            0.0,
            False,
            True,
            info | {"status": "ended", "reason": reason, "cause": cause, "detail": detail},
        )

    def _seen(self) -> str:
        return _NOTHING if self._waiting is None else shown(self._waiting.call)

    def _info(self, task: Task | None) -> dict[str, Any]:
        """The info, always with the same keys, so that vectorised environments can stack it."""
        call = None if self._waiting is None else self._waiting.call
        return {
            "task_id": "" if task is None else task.id,
            "rollout_id": "" if self._episode is None else self._episode.rollout_id,
            "steps": self._steps if self._running else 0,
            "status": "request" if call is not None else "ended",
            "waiting": 0 if self._waiting is None else self._waiting.count,
            "call_id": "" if call is None else str(call["call_id"]),
            "prompt_token_ids": () if call is None else tuple(call["prompt_token_ids"]),
            "stop_reason": "",
            "verdict": "none",
            "reason": "",
            "cause": "",
            "detail": "",
        }


def shown(call: Mapping[str, Any], most: int = REQUEST) -> str:
    """A request as JSON of at most `most` characters. Longer texts in its messages are cut until it fits.

    If that is not enough, its tools are dropped, then its first messages.
    """
    request = {name: call[name] for name in ("model", "messages", "tools", "tool_choice")}
    room = most
    while len(text := json.dumps(request)) > most:
        if room >= _LEAST:
            room //= 2
            request["messages"] = [_shorter(message, room) for message in call["messages"]]
        elif request["tools"]:
            request["tools"] = []
        elif request["messages"]:
            request["messages"] = request["messages"][1:]
        else:
            return _NOTHING
    return text


def _shorter(value: Any, room: int) -> Any:
    """A copy of a JSON value with every text cut to `room` characters."""
    if isinstance(value, str):
        return fit(value, room)
    if isinstance(value, dict):
        return {key: _shorter(each, room) for key, each in value.items()}
    return [_shorter(each, room) for each in value] if isinstance(value, list) else value
