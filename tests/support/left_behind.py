"""Counts what an environment leaves on the machine: processes, descriptors, temporary files and folders,
containers.

    python -m tests.support.left_behind harnessgym/SWE-v0 --agent gold --steps 1000

A child process with its own folder for temporary files plays the steps and closes the environment. It counts
before and after. The first count comes after one short episode, so that everything a process loads once is
loaded.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import psutil

from environments.agents import GoldAgent, Played, RandomAgent, ScriptedPlayer, play

_ROOT = Path(__file__).parents[2]
_END_S = 20.0
"""How long processes that are ending may take."""
_WARM = 4


@dataclass(frozen=True, slots=True)
class Look:
    """The counts at one moment."""

    processes: int
    """Descendants."""
    descriptors: int
    temporary: int
    """Files and folders in the folder for temporary files. The empty folder for workspaces itself stays."""
    containers: int
    """The Docker engine's, where Docker is used."""


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """One environment and agent."""

    id: str
    agent: str
    sandbox: str
    steps: int
    episodes: int
    seconds: float
    before: dict[str, int]
    after: dict[str, int]

    @property
    def clean(self) -> bool:
        """Whether nothing was left."""
        return all(self.after[name] <= self.before[name] for name in self.before)


def left_behind(
    name: str, agent: str, steps: int, *, tasks: str = "", sandbox: str = "bubblewrap"
) -> LeftBehind:
    """Play `steps` steps of an id in a child process. `agent` is `random` or `gold`; `tasks` replaces the
    id's own.

    Raises `CalledProcessError` if the child fails; its output goes to standard error.
    """
    command = [
        sys.executable,
        "-m",
        "tests.support.left_behind",
        name,
        "--agent",
        agent,
        "--steps",
        str(steps),
    ]
    command += ["--sandbox", sandbox, *(["--tasks", tasks] if tasks else [])]
    with tempfile.TemporaryDirectory(prefix="left-behind-") as folder:
        env = {**os.environ, "TMPDIR": folder}
        done = subprocess.run(command, cwd=_ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return LeftBehind(**json.loads(done.stdout.splitlines()[-1]))


def rows(
    steps: int, ids: tuple[tuple[str, str], ...], sandboxes: tuple[str, ...] = ("bubblewrap",)
) -> list[LeftBehind]:
    """Both agents on each of `ids`, which are pairs of an id and its tasks (empty: its own)."""
    return [
        left_behind(name, agent, steps, tasks=tasks, sandbox=sandbox)
        for name, tasks in ids
        for sandbox in sandboxes
        for agent in ("random", "gold")
    ]


def _agent(kind: str, env: gymnasium.Env[Any, str], name: str, tasks: str) -> ScriptedPlayer:
    if kind == "random":
        return RandomAgent(env.action_space, seed=1)
    return GoldAgent(tasks, harness=name == "harnessgym/Harness-v0")


def _play(name: str, kind: str, steps: int, options: dict[str, Any]) -> Played:
    env = gymnasium.make(f"environments:{name}", **options)
    try:
        given = env.spec.kwargs if env.spec is not None else {}
        return play(env, _agent(kind, env, name, str(given.get("tasks", "shell"))), steps)
    finally:
        env.close()


def _look(least: Look | None = None) -> Look:
    """Count until nothing exceeds `least`, or the time is over."""
    deadline = time.monotonic() + _END_S
    while True:
        gc.collect()
        now = Look(
            processes=len(psutil.Process().children(recursive=True)),
            descriptors=len(os.listdir("/proc/self/fd")),
            temporary=sum(1 for _ in Path(tempfile.gettempdir()).rglob("*")),
            containers=_containers(),
        )
        if least is None or time.monotonic() > deadline:
            return now
        if all(value <= asdict(least)[name] for name, value in asdict(now).items()):
            return now
        time.sleep(0.1)


def _containers() -> int:
    """Containers whose workspaces lie in our folder for temporary files."""
    if "docker" not in sys.argv:
        return 0
    from harnessgym.sandboxes.images.connection import EngineConnection

    with EngineConnection() as connection:
        found = connection.client.api.containers(all=True)
    return sum(
        any(str(value).startswith(tempfile.gettempdir()) for value in (each["Labels"] or {}).values())
        for each in found
    )


def main() -> None:
    """Play, count, print one line of JSON."""
    parser = argparse.ArgumentParser(description="Plays an environment and counts what it leaves behind.")
    parser.add_argument("id")
    parser.add_argument("--agent", choices=("random", "gold"), default="random")
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--tasks", default="")
    asked = parser.parse_args()
    options = {"sandbox": asked.sandbox, **({"tasks": asked.tasks} if asked.tasks else {})}
    _play(asked.id, asked.agent, _WARM, options)
    before = _look()
    began = time.monotonic()
    played = _play(asked.id, asked.agent, asked.steps, options)
    seconds = round(time.monotonic() - began, 2)
    after = _look(before)
    episodes = len(played.rewards) + sum(played.stopped.values())
    found = LeftBehind(
        asked.id, asked.agent, asked.sandbox, played.steps, episodes, seconds, asdict(before), asdict(after)
    )
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
