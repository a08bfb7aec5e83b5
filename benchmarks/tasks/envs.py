"""What the gymnasium environments cost: a reset, a step beyond its command, and what eight at a time give.

    python -m benchmarks.tasks.envs --tasks swe --sandbox bubblewrap --sandbox docker

A step's overhead is its time less the 50 ms that its command sleeps; the same command started by `subprocess`
stands beside it.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium

from benchmarks.sandbox.timing import Figures, spread

SLEEP_S = 0.05
_SLEEP = json.dumps({"run": f"sleep {SLEEP_S}"})
_WARM = 3
_ID = "environments:harnessgym/SWE-v0"


@dataclass(frozen=True, slots=True)
class Row:
    """One measure."""

    what: str
    sandbox: str
    figures: Figures


def resets(tasks: str, sandbox: str, count: int, pause_s: float = 0.0) -> Row:
    """Resets to the tasks of a set in turn, each task seen before once. `pause_s` between them is what an
    episode leaves.
    """
    env = gymnasium.make(_ID, tasks=tasks, sandbox=sandbox)
    try:
        ids = _ids(env)
        for name in ids:
            env.reset(options={"task_id": name})
            time.sleep(pause_s)
        times = []
        for turn in range(count):
            time.sleep(pause_s)
            began = time.perf_counter()
            env.reset(options={"task_id": ids[turn % len(ids)]})
            times.append(time.perf_counter() - began)
    finally:
        env.close()
    return Row(f"reset, {tasks}", sandbox, spread(times))


def steps(tasks: str, sandbox: str, count: int) -> Row:
    """Steps of one episode that run a command of 50 ms, less that."""
    env = gymnasium.make(_ID, tasks=tasks, sandbox=sandbox, max_steps=count + _WARM + 1)
    try:
        env.reset(seed=0)
        for _ in range(_WARM):
            env.step(_SLEEP)
        times = [_timed(env) - SLEEP_S for _ in range(count)]
    finally:
        env.close()
    return Row(f"step beyond its command, {tasks}", sandbox, spread(times))


def plain(count: int) -> Row:
    """The same command without sandbox and environment."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        subprocess.run(
            ["sh", "-c", f"sleep {SLEEP_S}"], check=True, stdin=subprocess.DEVNULL, capture_output=True
        )
        times.append(time.perf_counter() - began - SLEEP_S)
    return Row("subprocess beyond its command", "none", spread(times))


def speed_up(tasks: str, sandbox: str, count: int, many: int = 8, *, shared_memory: bool = False) -> Row:
    """Steps a second of `many` vectorised environments over those of one, with commands of 50 ms."""
    one = _rate(tasks, sandbox, count, 1, shared_memory)
    all_ = _rate(tasks, sandbox, count, many, shared_memory)
    figures = {"one_steps_per_s": one, "many_steps_per_s": all_, "times": all_ / one, "n": float(count)}
    return Row(f"{many} vectorised, {'shared memory' if shared_memory else 'pipes'}", sandbox, figures)


def measure(tasks: str, sandboxes: Sequence[str], count: int) -> list[Row]:
    """All of it."""
    rows = [plain(count)]
    for sandbox in sandboxes:
        pause_s = (
            0.5 if sandbox == "docker" else 0.0
        )  # an episode's time, in which the next container is made
        rows += [
            resets(tasks, sandbox, count, pause_s),
            steps(tasks, sandbox, count),
            speed_up(tasks, sandbox, count),
        ]
    return rows


def _ids(env: gymnasium.Env[Any, str]) -> list[str]:
    """Tasks that seeds lead to."""
    found = {env.reset(seed=seed)[1]["task_id"] for seed in range(12)}
    return sorted(found)


def _timed(env: gymnasium.Env[Any, str]) -> float:
    began = time.perf_counter()
    _, _, terminated, truncated, info = env.step(_SLEEP)
    seconds = time.perf_counter() - began
    if terminated or truncated:
        raise RuntimeError(f"An episode ended while it was measured: {info}")
    return seconds


def _rate(tasks: str, sandbox: str, count: int, many: int, shared_memory: bool) -> float:
    envs = gymnasium.make_vec(
        _ID,
        num_envs=many,
        vectorization_mode="async",
        vector_kwargs={"shared_memory": shared_memory},
        tasks=tasks,
        sandbox=sandbox,
        max_steps=count + _WARM + 1,
    )
    try:
        envs.reset(seed=0)
        actions = (_SLEEP,) * many
        for _ in range(_WARM):
            envs.step(actions)
        began = time.perf_counter()
        for _ in range(count):
            envs.step(actions)
        return many * count / (time.perf_counter() - began)
    finally:
        envs.close()


def main() -> None:
    """Print the rows as JSON lines."""
    parser = argparse.ArgumentParser(description="Measures the gymnasium environments.")
    parser.add_argument("--tasks", default="swe")
    parser.add_argument("--sandbox", action="append")
    parser.add_argument("--count", type=int, default=50)
    asked = parser.parse_args()
    for row in measure(asked.tasks, asked.sandbox or ["bubblewrap"], asked.count):
        print(json.dumps(asdict(row)))


if __name__ == "__main__":
    main()
