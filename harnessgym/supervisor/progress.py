"""The numbers of the live dashboard, read from a run's folder and its store.

Nothing here needs the process that serves the run: `harnessgym watch` can look at a run of another process or
at one that has ended. The cost of a look depends on what is new since the last one, not on the size of the
store or the number of steps. The exceptions are failed attempts and groups by state, which the database
counts over an index.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sqlalchemy import Connection

from harnessgym.errors import StoreError
from harnessgym.metrics.feed import SinkStatus, read_statuses
from harnessgym.metrics.lines import Entry, StepLines
from harnessgym.metrics.window import Processors, StageUse, StalenessCounts, Window, WorkerUse
from harnessgym.rollout.plan import EVALUATIONS
from harnessgym.run_config.run import RunConfig
from harnessgym.run_folder import RunFolder
from harnessgym.run_identity import run_of
from harnessgym.store import TraceStore, clock, leases, recent, rollouts, workers
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.recent import RecentCall, RecentRollout, TrainedTokens
from harnessgym.store.runs import RunRow
from harnessgym.store.workers import EMBEDDED, GONE, WorkerRow

_WINDOW_S = 60.0
_LATE_S = 2.0
"""A row may become visible this long after its id was made."""
_LEDGER_S = 3_600.0
_REWARDS = 256
_STEPS = 8
"""Number of steps over which the trainer's shares and the time left are averaged."""


@dataclass(frozen=True, slots=True)
class TrainerUse:
    """How the trainer spent its last few steps."""

    idle: float
    """Share of the time spent waiting for rollouts, 0 to 1."""
    wait_s: float
    """Seconds it waited per step."""
    step_s: float
    """Seconds it worked per step."""
    interval_s: float
    """Seconds from step to step."""


@dataclass(frozen=True, slots=True)
class PolicyProgress:
    """The progress of one of several policies."""

    name: str
    version: int
    """Newest version, -1 before there is one."""
    steps: int
    metrics: Entry
    """Metrics of its last training step."""
    trainer: TrainerUse | None


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The state of a run at one look. Rates and shares cover the last minute."""

    name: str
    status: str
    done: int
    """Training steps taken or groups evaluated in this phase."""
    total: int
    left_s: float | None
    """Seconds until this phase ends at its present pace; None if unknown."""
    steps: int
    """Training steps taken."""
    metrics: Entry
    """Metrics of the last training step."""
    rewards: tuple[float, ...]
    """Mean reward of each of the newest steps."""
    trainer: TrainerUse | None
    engines: tuple[tuple[WorkerRow, WorkerUse], ...]
    stages: Mapping[str, tuple[int, StageUse]]
    """Stage name to its places and how they were used."""
    processors: Mapping[str, float | None]
    """CPU cores that each process keeps busy."""
    recorded: bool
    """Whether a supervisor recorded processes on this machine. On a cluster, none does."""
    nodes: int
    """Nodes that take rollouts."""
    running: int
    pending: int
    failed: int
    """Rollout attempts that ended with an infrastructure error since the run began."""
    failures: Mapping[str, int]
    """Failed attempts of the last minute by cause."""
    groups: Mapping[str, int]
    """Training groups by state: open, complete, dropped."""
    eta: int
    staleness: Mapping[int, int]
    """Tokens trained in the last hour by the staleness of their rollout's oldest token."""
    staleness_of_step: Mapping[int, int]
    """The same for the newest step."""
    versions: tuple[PolicyVersion, ...]
    """The newest versions, oldest first."""
    counters: Mapping[str, float]
    """What the trainer dropped, requeued or replayed, summed over the metrics of all steps."""
    tokens_per_s: float
    rollouts_per_s: float
    sinks: Mapping[str, SinkStatus]
    """State of each metrics sink by name."""
    restarts: int | None
    """Restarted processes; None if only the supervisor knows."""
    silent: Mapping[str, float] = field(default_factory=dict)
    """Silent processes: name to seconds without a heartbeat."""
    policies: Mapping[str, PolicyProgress] = field(default_factory=dict)
    """All policies by id if there are several, the first one first. The fields above are the first one's."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The result of one read of the store. The read must change nothing, because it may run twice."""

    now: float
    """The database's time of the look; for a run that has ended, its end."""
    run: RunRow
    engines: Sequence[WorkerRow]
    nodes: int
    running: Sequence[str]
    pending: int
    failed: int
    groups: Mapping[str, int]
    evaluated: tuple[int, int]
    """Judged groups of the present evaluation, and all its groups."""
    versions: Sequence[PolicyVersion]
    calls: Sequence[RecentCall]
    """New calls, and those that were open at the last look."""
    rollouts: Sequence[RecentRollout]
    """Rollouts that run or may have ended since the last look, including other runs' rollouts."""
    trained: Sequence[TrainedTokens]
    """New rows of the ledger."""
    policies: Mapping[str, tuple[str, int]]
    """Name and newest version by policy id, if there are several."""


@dataclass
class RunObserver:
    """Looks at a run repeatedly. `restarts` counts restarted processes, where the caller knows them."""

    folder: RunFolder
    store: TraceStore
    restarts: Callable[[], int] | None = None
    _config: RunConfig = field(init=False)
    _lines: StepLines = field(init=False)
    _of_policy: dict[str, StepLines] = field(init=False)
    """Metrics lines by policy name."""
    _processors: Processors = field(init=False)
    _window: Window = field(default_factory=lambda: Window(_WINDOW_S))
    _known: set[str] = field(default_factory=set)
    """Rollouts of this run seen running and not yet seen ended."""
    _foreign: set[str] = field(default_factory=set)
    """Rollouts of other runs in the same database that recent calls belong to."""
    _trained: StalenessCounts = field(default_factory=StalenessCounts)
    _from: float = 0.0
    """Time of the first known call; 0.0 before there is one."""
    _looked: float = 0.0
    _sums: Counter[str] = field(default_factory=Counter)
    """Sums over the first `_summed` lines. `_rewritten` tells whether old lines have changed since."""
    _summed: int = 0
    _rewritten: int = 0
    _evaluated: tuple[str, float, int] = ("", 0.0, 0)
    """An evaluation's status, when it was first looked at, and its judged groups then."""

    def __post_init__(self) -> None:
        self._config = self.folder.config()
        self._lines = StepLines(self.folder.metrics_path)
        self._of_policy = {self._config.policy.name: self._lines}
        for policy in self._config.policies:
            self._of_policy[policy.name] = StepLines(RunFolder(self.folder.root, policy.name).metrics_path)
        self._processors = Processors(self.folder.processes_path)

    def look(self) -> RunProgress:
        """The run's present state. Raises `StoreError` if its store has no run yet."""
        seen = self.store.read(self._read)
        self._follow(seen)
        lines = self._lines.read()
        config = self._config
        trainer = trainer_use(lines[-_STEPS:])
        recorded = self.folder.processes_path.exists()
        policies = self._policies(seen)
        steps = int(lines[-1]["step"]) if lines else 0
        steps = min((each.steps for each in policies.values()), default=steps)
        silent = {} if seen.run.ended_at is not None else _silent(self.folder.silent_path)
        done, total = seen.evaluated if seen.run.status in EVALUATIONS else (steps, config.trainer.steps)
        return RunProgress(
            name=config.name,
            status=seen.run.status,
            done=done,
            total=total,
            left_s=self._left_s(seen, trainer, total - done),
            steps=steps,
            metrics=lines[-1] if lines else {},
            rewards=tuple(line["reward"] for line in lines[-_REWARDS:] if "reward" in line),
            trainer=trainer,
            engines=tuple((_with_silence(row, silent), self._window.worker(row.id)) for row in seen.engines),
            stages=self._stages(seen.nodes or (1 if recorded else config.cluster.nodes)),
            processors=self._processors.look(),
            recorded=recorded,
            nodes=seen.nodes,
            running=len(seen.running),
            pending=seen.pending,
            failed=seen.failed,
            failures=self._window.failures,
            groups=seen.groups,
            eta=config.trainer.max_staleness,
            staleness=self._trained.all,
            staleness_of_step=self._trained.newest,
            versions=tuple(seen.versions),
            counters=self._counted(lines),
            tokens_per_s=self._window.tokens_per_s,
            rollouts_per_s=self._window.rollouts_per_s,
            sinks=read_statuses(self.folder.sinks_path),
            restarts=self.restarts() if self.restarts else None,
            silent=silent,
            policies=policies,
        )

    def _policies(self, seen: _Seen) -> dict[str, PolicyProgress]:
        out = {}
        for policy_id, (name, version) in seen.policies.items():
            lines = self._of_policy[name].read()
            steps, metrics = (int(lines[-1]["step"]), lines[-1]) if lines else (0, {})
            out[policy_id] = PolicyProgress(name, version, steps, metrics, trainer_use(lines[-_STEPS:]))
        return out

    def _counted(self, lines: Sequence[Entry]) -> dict[str, float]:
        """`counters` of all lines. Adds only the new lines unless old ones have changed."""
        if self._lines.rewritten != self._rewritten:
            self._sums = Counter()
            self._summed = 0
            self._rewritten = self._lines.rewritten
        self._sums.update(counters(lines[self._summed :]))
        self._summed = len(lines)
        return dict(self._sums)

    def _stages(self, nodes: int) -> dict[str, tuple[int, StageUse]]:
        """Places of each stage on all nodes, and its use: an estimate, so it is capped at the places."""
        node = self._config.node
        used = self._window.stages()
        places = {
            "prepare": nodes * node.prepare_at_once,
            "run": nodes * node.max_running,
            "reconstruct": nodes * node.reconstruct_at_once,
            "evaluate": nodes * node.evaluate_at_once,
        }
        return {
            name: (most, replace(used[name], running=min(most, used[name].running)))
            for name, most in places.items()
        }

    def _read(self, conn: Connection) -> _Seen:
        run = run_of(conn, self.folder)
        if run is None:
            raise StoreError(f"{self.folder.root} has no run in its store; `harnessgym train` starts one.")
        now = clock.read(conn) if run.ended_at is None else run.ended_at
        # Reach back a little: a slow transaction may commit a row whose time is before the last look.
        since = self._looked - _LATE_S if self._looked else now - _WINDOW_S
        calls = recent.calls_since(conn, since) + recent.calls_of(conn, self._window.open_calls)
        running = recent.running(conn, run.id)
        # A rollout that has ended was running at an earlier look or has made a recent call.
        asked = {call.rollout_id for call in calls} - self._foreign | self._known | set(running)
        policy = recent.policy_of(conn, run.id, self._config.policy.name)
        after = self._trained.last_id or recent.id_at(now - _LEDGER_S)
        return _Seen(
            now=now,
            run=run,
            engines=workers.engines_of(conn, run.id),
            nodes=leases.nodes(conn, run.id),
            running=running,
            pending=recent.with_status(conn, run.id, "pending"),
            failed=recent.with_status(conn, run.id, "failed"),
            groups=recent.groups_in(conn, run.id, "train", ("open", "complete", "dropped")),
            evaluated=_evaluated(conn, run),
            versions=recent.newest_versions(conn, policy, _STEPS) if policy else (),
            calls=calls,
            rollouts=recent.rollouts_of(conn, asked),
            trained=recent.trained_since(conn, policy, after) if policy else (),
            policies=self._standing(conn, run.id),
        )

    def _standing(self, conn: Connection, run_id: str) -> dict[str, tuple[str, int]]:
        out = {}
        for name in self._of_policy if self._config.policies else ():
            if policy := recent.policy_of(conn, run_id, name):
                newest = recent.newest_versions(conn, policy, 1)
                out[policy] = name, newest[-1].version if newest else -1
        return out

    def _follow(self, seen: _Seen) -> None:
        """Advance the window and the ledger's counts."""
        now, called = seen.now, {call.rollout_id for call in seen.calls}
        own = [rollout for rollout in seen.rollouts if rollout.run_id == seen.run.id]
        others = {rollout.id for rollout in seen.rollouts} - {rollout.id for rollout in own}
        self._foreign = self._foreign & called | others
        self._known = {rollout.id for rollout in own if rollout.ended_at is None}
        self._window.add_calls(call for call in seen.calls if call.rollout_id not in self._foreign)
        self._window.add_ended(rollout for rollout in own if rollout.ended_at is not None)
        self._from = self._from or min((call.created_at for call in seen.calls), default=0.0)
        self._looked = now
        self._window.move(now, self._from or now - _WINDOW_S)
        self._trained.add(seen.trained)
        self._trained.forget_before(recent.id_at(now - _LEDGER_S))

    def _left_s(self, seen: _Seen, trainer: TrainerUse | None, left: int) -> float | None:
        status, now = seen.run.status, seen.now
        if status == "training":
            return left * trainer.interval_s if trainer else None
        if status not in EVALUATIONS:
            return None
        done = seen.evaluated[0]
        if self._evaluated[0] != status:
            self._evaluated = (status, now, done)
        rate = (done - self._evaluated[2]) / max(now - self._evaluated[1], 1e-9)
        return left / rate if rate > 0 else None


def trainer_use(lines: Sequence[Entry]) -> TrainerUse | None:
    """How the trainer spent the steps of these lines; None if they have no times."""
    timed_lines = [line for line in lines if "wait_s" in line and "step_s" in line]
    if not timed_lines:
        return None
    wait, step = (sum(line[name] for line in timed_lines) / len(timed_lines) for name in ("wait_s", "step_s"))
    times = [line["time"] for line in lines if "time" in line]
    interval = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else wait + step
    return TrainerUse(wait / max(wait + step, 1e-9), wait, step, interval)


def counters(lines: Sequence[Entry]) -> dict[str, float]:
    """Sums of every per-step number whose name begins with dropped, requeued or replayed."""
    out: dict[str, float] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith(("dropped", "requeued", "replayed")):
                out[name] = out.get(name, 0) + value
    return out


def read_metrics(folder: RunFolder) -> Sequence[Entry]:
    """One entry per training step, in order. A step logged twice counts once; a truncated line is skipped."""
    return StepLines(folder.metrics_path).read()


def _silent(path: Path) -> dict[str, float]:
    """Seconds of silence by process, from the supervisor's file."""
    try:
        since: dict[str, float] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return {name: max(0.0, time.time() - when) for name, when in since.items()}


def _with_silence(row: WorkerRow, silent: Mapping[str, float]) -> WorkerRow:
    """The row of a silent engine with that state, which it cannot record itself.

    Only for engines the run started: of an outside engine only the weight agent is silent.
    """
    return (
        replace(row, state="silent")
        if row.id in silent and row.kind == EMBEDDED and row.state not in GONE
        else row
    )


def _evaluated(conn: Connection, run: RunRow) -> tuple[int, int]:
    state_counts = [
        rollouts.group_states(conn, run.id, purpose) for purpose in EVALUATIONS.get(run.status, ())
    ]
    total = sum(sum(states.values()) for states in state_counts)
    return total - sum(states.get("open", 0) for states in state_counts), total
