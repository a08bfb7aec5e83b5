"""How early each step of a run can be done: a recursion over its batches, on its own draws.

Times are in seconds; t_b is when step b ends, V_d when every worker serves the version after d batches, V_0 =
0.

- **release**: groups up to (L + d)·B may be submitted at V_d, where L is η + 1 or what is over-launched.
  Batch-wise, a batch also waits until all before it are complete.
- **start**: rollouts begin in order of submission, each in the environment that is free first (the
  multi-server queue of Kiefer and Wolfowitz, 1955). It holds it for w·λ + e seconds: w decoded tokens at λ
  seconds each, and e of its environment; where λ changes over time, it has always done the same part of both.
  Its grade takes g.
- **take**: batch b is there when its groups are complete, or (*drop*, *requeue*) when (b + 1)·B groups of all
  are.
- **step**: t_b = max(take_b + T_b / m, t_(b-1) + T_b), of which m micro-batches leave the last one to be done
  after the take.
- **serve**: V_(b+1) = t_b + U, with U the whole roll (W updates by f leases, in turn), or the slowest worker
  of a pause; *between* batches not before all that was submitted is complete.

Maxima, sums and order statistics grow with what they are taken of, and so do starts in a first-come
multi-server queue. Hence, by induction over batches, a run whose rollouts take no less than here, whose
updates take no less, and in which no group is given up, does no step earlier than here. With λ = 1 /
`tokens_per_s`, the rate of a call that is alone, this holds for every run, draw by draw.

Where all engines stand still (`alone`, a global pause), the recursion runs on the time in which they do not,
and the pauses are added up beside it. Environments and graders go on in a pause: every rollout is credited
with what one gains there on average, at most (`WorkTable.gained_s`). It is the one place where draws do not
decide alone.
"""

import heapq
from dataclasses import dataclass
from functools import partial

from harnessgym.simulation.draws import Draws, WorkTable
from harnessgym.simulation.pace import Pace
from harnessgym.simulation.settings import SimulationConfig

_ROUNDING = 1e-9
"""What a product of a fraction of a batch may lack of a whole group."""


@dataclass(frozen=True, slots=True)
class Course:
    """What the recursion finds."""

    trained_s: list[float]
    """When each step can be done at the earliest."""
    calls_s: list[float]
    """Seconds for which calls are decoded in each span of the pace."""
    gives_up: bool
    """Whether a group would get older than η, so that others take its place: then the recursion says
    nothing."""


def groups_launched(config: SimulationConfig) -> int:
    """Groups that can be submitted before the last step ends."""
    return int((launched(config) + config.trainer.steps - 1) * config.trainer.groups_per_step + _ROUNDING)


def launched(config: SimulationConfig) -> float:
    """L: batches' worth of groups that stand at one time."""
    options = config.trainer
    return options.max_staleness + 1 if options.over_launch is None else options.over_launch


def course_of(config: SimulationConfig, work: WorkTable, pace: Pace, drain_s: float = 0.0) -> Course:
    """The recursion at a pace; calls in flight hold up an update for `drain_s`.

    `work` has `groups_launched` groups of rollouts, at least.
    """
    return _Recursion(config, work, pace, drain_s).run()


def update_s(config: SimulationConfig, draws: Draws, drain_s: float) -> float:
    """U of the next version."""
    workers = range(config.engines.workers)
    if config.updates.mode != "rolling":
        return max(draws.install_s() + draws.transfer_s() for _ in workers)
    leases = [0.0] * min(config.leases, config.engines.workers)
    for _ in workers:
        heapq.heapreplace(leases, leases[0] + draws.transfer_s() + drain_s + draws.install_s())
    return max(leases)


class _Recursion:
    def __init__(self, config: SimulationConfig, work: WorkTable, pace: Pace, drain_s: float) -> None:
        self._config = config
        self._options = config.trainer
        self._work = work
        self._pace = pace
        self._gained = partial(work.gained_s, token_s=pace.mean_s)
        self._drain_s = 0.0 if config.trainer.alone else drain_s
        """Engines that stand still have no call in flight."""
        self._works: list[tuple[float, float]] = list(
            zip(work.environment_s.tolist(), work.decoding.tolist(), strict=True)
        )
        self._grades: list[float] = work.grading_s.tolist()
        self._calls_s: list[float] = []
        size = config.trainer.group_size if config.work.sampling == "task" else 1
        self._free = [0.0] * (config.work.environments // size)
        """When each environment is free; by task, when each place of a whole group is."""
        self._complete: list[float] = []
        """When each group is complete, in order of submission."""
        self._standing: list[tuple[float, int]] = []
        """Those not taken, the first to be complete first, with the batches behind the version they were
        released with."""
        self._latest = 0.0
        """When all that was submitted is complete."""
        self._trained = 0.0
        self._paused = 0.0
        """The end of the last step, on the time in which engines do not stand still, and the seconds in
        which they do."""
        self._before = (0.0, 0.0)
        """Seconds for which they stand still for the last step, and then for its version."""

    def run(self) -> Course:
        """All steps."""
        options = self._options
        draws = Draws(self._config)
        served = 0.0
        out = Course([], self._calls_s, gives_up=False)
        gives_up = False
        for step, step_s in enumerate(draws.step_s):
            self._release(
                served, int((launched(self._config) + step) * options.groups_per_step + _ROUNDING), step
            )
            take = self._take(step)
            gives_up = gives_up or any(step - depth > options.max_staleness for _, depth in self._standing)
            self._step(take, step_s)
            out.trained_s.append(self._trained + self._paused)
            update = update_s(self._config, draws, self._drain_s)
            self._before = (
                step_s if options.alone else 0.0,
                update if self._config.updates.mode == "global" else 0.0,
            )
            served = max(served, self._served(update))
        return Course(out.trained_s, self._calls_s, gives_up)

    def _release(self, served: float, end: int, depth: int) -> None:
        """Groups before `end` may be submitted."""
        batch_wise = self._config.work.sampling == "batch"
        batch = self._options.groups_per_step
        while (first := len(self._complete)) < end:
            at = max(served, self._latest) if batch_wise else served
            for group in range(first, min(first + batch, end)):
                done = self._run(group, at)
                self._complete.append(done)
                self._latest = max(self._latest, done)
                if self._options.consumption != "wait":
                    heapq.heappush(self._standing, (done, depth))

    def _run(self, group: int, at: float) -> float:
        """When the group is complete if it may begin at a time."""
        size = self._options.group_size
        free = self._free
        done = 0.0
        members = range(group * size, (group + 1) * size)
        if self._config.work.sampling == "task":
            begun = max(at, free[0])
            done = max(self._left(member, begun) + self._grades[member] for member in members)
            heapq.heapreplace(free, done)
            return done
        for member in members:
            begun = max(at, free[0])
            left = self._left(member, begun)
            heapq.heapreplace(free, left)
            done = max(done, left + self._grades[member])
        return done

    def _left(self, member: int, begun: float) -> float:
        """When a rollout leaves its environment."""
        environment_s, decoding = self._works[member]
        return self._pace.left(begun, environment_s, decoding, self._calls_s)

    def _take(self, step: int) -> float:
        """When the next batch is complete."""
        batch = self._options.groups_per_step
        if self._options.consumption == "wait":
            return max(self._complete[step * batch : (step + 1) * batch])
        return max(heapq.heappop(self._standing)[0] for _ in range(batch))

    def _step(self, take: float, step_s: float) -> None:
        """Train. A batch that lacks no more than the longest wait is trained during the pause that follows
        the last step.
        """
        options, (stopped_s, paused_s) = self._options, self._before
        longest_s = float(self._work.waits_s[-1])
        during = take <= self._trained + self._drain_s + min(stopped_s + paused_s, longest_s)
        if options.alone:  # n steps and one pause, if they follow one another
            paused_s = 0.0 if during else paused_s
            self._paused += paused_s + step_s - self._gained(stopped_s + paused_s)
            self._trained = max(self._trained, take)
            return
        hidden_s = min(step_s, paused_s) if during else 0.0
        if not during or step_s >= paused_s:
            self._paused += paused_s - self._gained(paused_s)
        self._trained = max(take + step_s / options.micro_batches, self._trained + step_s) - hidden_s

    def _served(self, update: float) -> float:
        """When every worker has the version of the step that has ended."""
        mode = self._config.updates.mode
        if mode == "between":
            return max(self._trained, self._latest) + update
        return self._trained + (update if mode == "rolling" else self._drain_s)
