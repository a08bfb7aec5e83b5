"""What a run looks like from outside: the numbers of the live dashboard, read from its store and folder."""

import contextlib
import json
import time
from collections import deque
from dataclasses import dataclass, field

from sqlalchemy import Connection

from harnessgym.run_folder import RunFolder
from harnessgym.store import counts, rollouts, workers
from harnessgym.store.workers import WorkerRow
from harnessgym.supervisor.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a run."""

    status: str
    steps: int
    total_steps: int
    groups: dict[str, dict[str, int]]
    """Purpose to state to count."""
    rollouts: dict[str, int]
    metrics: dict[str, float]
    """Of the last training step."""
    rewards: tuple[float, ...]
    """Mean reward per step."""
    workers: tuple[WorkerRow, ...]
    tokens_per_s: float
    rollouts_per_s: float
    restarts: int


@dataclass
class Observer:
    """Looks at a run again and again, and knows rates from the difference."""

    supervisor: Supervisor
    _seen: deque[tuple[float, int, int]] = field(default_factory=lambda: deque(maxlen=12))

    def look(self) -> Progress:
        """The run as it is now."""
        run, config = self.supervisor.run_id, self.supervisor.config
        purposes = ("before_sampled", "before_greedy", "train", "after_sampled", "after_greedy")

        def work(conn: Connection) -> tuple[dict[str, dict[str, int]], dict[str, int], list[WorkerRow], int, int]:
            states = {purpose: rollouts.group_states(conn, run, purpose) for purpose in purposes}
            tokens, done = counts.tokens_sampled(conn, run), counts.finished_rollouts(conn, run)
            return states, rollouts.rollout_states(conn, run), workers.engines_of(conn, run), tokens, done

        groups, states, serving, tokens, done = self.supervisor.store.read(work)
        now = time.monotonic()
        first = self._seen[0] if self._seen else (now - 1e9, tokens, done)
        self._seen.append((now, tokens, done))
        lines = read_metrics(self.supervisor.folder)
        return Progress(
            status=self.supervisor.status,
            steps=int(lines[-1]["step"]) if lines else 0,
            total_steps=config.trainer.steps,
            groups=groups,
            rollouts=states,
            metrics=lines[-1] if lines else {},
            rewards=tuple(line["reward"] for line in lines),
            workers=tuple(serving),
            tokens_per_s=(tokens - first[1]) / (now - first[0]),
            rollouts_per_s=(done - first[2]) / (now - first[0]),
            restarts=sum(child.restarts for child in self.supervisor.children.by_name.values()),
        )


def read_metrics(folder: RunFolder) -> list[dict[str, float]]:
    """One entry per training step in order. A step logged twice around a crash counts once, a line cut off not at all."""
    if not folder.metrics_path.exists():
        return []
    by_step: dict[float, dict[str, float]] = {}
    for line in folder.metrics_path.read_text().splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            by_step[entry["step"]] = entry
    return [by_step[step] for step in sorted(by_step)]
