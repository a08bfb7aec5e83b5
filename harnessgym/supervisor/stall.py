"""Explains why a run makes no progress: which process waits for which."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from harnessgym.store import TraceStore, policies, rollouts, workers
from harnessgym.store.runs import RunStatus
from harnessgym.store.workers import WorkerRow
from harnessgym.supervisor.processes import Processes
from harnessgym.supervisor.stall_report import Engines, hold_ups

_PURPOSES: Mapping[str, tuple[str, ...]] = {
    "evaluating_before": ("before_sampled", "before_greedy"),
    "training": ("train",),
    "evaluating_after": ("after_sampled", "after_greedy"),
}
_LOOKS_PER_PERIOD = 10
_SILENT_S = 2.0
"""A process without a heartbeat for this long is reported as silent."""


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The state of a run in counts."""

    status: RunStatus
    groups: Mapping[str, int]
    """Groups of this phase by state."""
    rollouts: Mapping[str, int]
    """Rollouts of the run by status."""
    version: int
    """Newest version, -1 if there is none."""
    workers: tuple[WorkerRow, ...]
    versions: Mapping[str, int] = field(default_factory=dict)
    """Newest version by policy if there are several; `version` is the lowest."""

    def behind(self, worker: WorkerRow) -> bool:
        """Whether a worker serves an older version of its policy than the newest."""
        return worker.version < self.versions.get(worker.policy_id or "", self.version)

    @property
    def progress(self) -> tuple[object, ...]:
        """Changes when a rollout finishes, a step is taken or a phase ends. Failed rollouts do not count."""
        return (
            self.status,
            self.rollouts.get("finished", 0),
            self.groups.get("consumed", 0),
            self.version,
            *self.versions.values(),
        )


@dataclass
class StallWatch:
    """Looks at a run periodically and explains each `period_s` without progress, once per period."""

    store: TraceStore
    run_id: str
    policy_id: str
    children: Processes
    period_s: float
    _last: tuple[object, ...] = ()
    _since: float = field(default_factory=time.monotonic)
    _told: float = field(default_factory=time.monotonic)
    _next: float = 0.0

    def look(self, status: RunStatus) -> str | None:
        """An explanation for people if one is due, else None."""
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + self.period_s / _LOOKS_PER_PERIOD
        counts = self.store.read(lambda conn: stand(conn, self.run_id, self.policy_id, status))
        if counts.progress != self._last:
            self._last = counts.progress
            self._since = now
            self._told = now
        if now - self._told < self.period_s:
            return None
        self._told = now
        return self._explain(counts, now - self._since, self._hold_ups(counts))

    def _hold_ups(self, counts: RunCounts) -> list[str]:
        behind = frozenset(worker.id for worker in counts.workers if counts.behind(worker))
        followed = frozenset(self.children.by_name)
        engines = Engines(counts.workers, counts.version, behind, counts.versions, followed)
        purposes = _PURPOSES.get(counts.status, ())
        return self.store.read(lambda conn: hold_ups(conn, self.run_id, purposes, engines))

    def _explain(self, counts: RunCounts, seconds: float, held_up: list[str]) -> str:
        engines = (
            ", ".join(f"{each.id} v{each.version} {each.state}" for each in counts.workers)
            or "none has registered"
        )
        lines = [
            (
                f"No rollout has finished and no step was taken for {seconds:.0f} s while "
                f"{counts.status.replace('_', ' ')}."
            ),
            f"  {waiting(counts)}",
            *(f"  {sentence}" for sentence in held_up),
            f"  rollouts: {_counts(counts.rollouts)}; groups of this phase: {_counts(counts.groups)}",
            f"  newest version: {counts.version}; engines: {engines}",
        ]
        for name, child in self.children.by_name.items():
            words = self.children.log_tail(name).splitlines()
            silence = child.silence
            shown = silence.phase == "running" and silence.seconds >= _SILENT_S
            silent = f", silent for {silence.seconds:.0f} s" if shown else ""
            lines.append(f"  {name} ({child.where}, {child.restarts} restarts{silent}): {words[-1][:160]}")
        return "\n".join(
            [*lines, f"  Logs: {self.children.folder.logs}. Ctrl-C ends the run; the same command goes on."]
        )


def stand(conn: Connection, run_id: str, policy_id: str, status: RunStatus) -> RunCounts:
    """A run's present counts."""
    state_counts = [rollouts.group_states(conn, run_id, purpose) for purpose in _PURPOSES.get(status, ())]
    states = {
        state: sum(each.get(state, 0) for each in state_counts) for each in state_counts for state in each
    }
    ids = [policy_id, *(each for each in policies.of_run(conn, run_id).values() if each != policy_id)]
    newest = {each: -1 if (latest := policies.latest(conn, each)) is None else latest.version for each in ids}
    version = min(newest.values())
    several = newest if len(newest) > 1 else {}
    by_status = rollouts.rollout_states(conn, run_id)
    return RunCounts(status, states, by_status, version, tuple(workers.engines_of(conn, run_id)), several)


def waiting(counts: RunCounts) -> str:
    """A sentence on which process waits for which, as far as the counts show."""
    serving = counts.workers
    reasons = (
        (counts.version < 0, "Everybody waits for the trainer to publish the starting weights."),
        (
            not any(worker.state == "ready" for worker in serving),
            "Harnesses wait for an engine: none is ready.",
        ),
        (
            counts.rollouts.get("running"),
            "The trainer waits for rollouts, which wait for a harness, an engine or a grader.",
        ),
        (
            counts.rollouts.get("pending"),
            "The trainer waits for rollouts, which wait for the node to run them.",
        ),
        (
            any(counts.behind(worker) for worker in serving),
            "The node waits for every engine to serve the newest version.",
        ),
        (counts.groups.get("complete"), "The node waits for the trainer to consume complete groups."),
    )
    return next(
        (text for holds, text in reasons if holds),
        "The node submits nothing: it waits for engines or the trainer.",
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items())) or "none"
