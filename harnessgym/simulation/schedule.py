"""The earliest time of each step of a run: a recursion over its batches, on its own draws.

Times are in seconds. t_b is the end of step b; V_d is when every worker serves the version after d batches,
with V_0 = 0.

- **release**: groups up to (L + d)·B may be submitted at V_d, where L is η + 1 or `over_launch`. With
  sampling by batch, a batch also waits until all before it are complete.
- **start**: rollouts begin in order of submission, each in the environment that is free first (the
  multi-server queue of Kiefer and Wolfowitz, 1955). A rollout holds it for w·λ + e seconds: w decoded tokens
  at λ seconds each, and e of its environment. If λ changes over time, the same share of both is always done.
  Its grade takes g.
- **take**: batch b is ready when its groups are complete, or (*drop*, *requeue*) when any (b + 1)·B groups
  are.
- **step**: t_b = max(take_b + T_b / m, t_(b-1) + T_b): of m micro-batches only the last is worked on after
  the take.
- **serve**: V_(b+1) = t_b + U, where U is the whole rolling update (W updates by f leases, in turn) or the
  slowest worker of a pause. *between*: not before everything submitted is complete.

Maxima, sums and order statistics are monotone in their arguments, and so are starts in a first-come
multi-server queue. By induction over batches, a run finishes no step earlier than here if its rollouts and
updates take no less time than here and no group is given up. With λ = 1 / `tokens_per_s`, the rate of a call
that is alone, this holds for every run, draw by draw.

Where all engines stop (`alone`, a global pause), the recursion runs on the time in which they do not, and the
pauses are summed separately. Environments and graders continue during a pause: every rollout is credited with
an upper bound on its mean progress there (`WorkTable.gained_s`). This is the only place where a mean replaces
the draws.
"""

import heapq
from dataclasses import dataclass
from functools import partial

from harnessgym.simulation.draws import Draws, WorkTable
from harnessgym.simulation.pace import Pace
from harnessgym.simulation.settings import SimulationConfig

_ROUNDING = 1e-9
"""Rounding error allowed when a fraction of a batch is turned into whole groups."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The result of the recursion."""

    trained_s: list[float]
    """Earliest end of each step."""
    calls_s: list[float]
    """Seconds for which calls are decoded, summed over calls, in each span of the pace."""
    gives_up: bool
    """Whether a group would get staler than η and be replaced. The recursion is then no bound."""


def groups_launched(config: SimulationConfig) -> int:
    """Groups that can be submitted before the last step ends."""
    return int((launched(config) + config.trainer.steps - 1) * config.trainer.groups_per_step + _ROUNDING)


def launched(config: SimulationConfig) -> float:
    """L: batches' worth of groups that may be outstanding at one time."""
    options = config.trainer
    return options.max_staleness + 1 if options.over_launch is None else options.over_launch


def step_times(config: SimulationConfig, work: WorkTable, pace: Pace, drain_s: float = 0.0) -> StepTimes:
    """Run the recursion at a pace. Calls in flight delay an update by `drain_s`.

    `work` must have at least `groups_launched` groups of rollouts.
    """
    return _Recursion(config, work, pace, drain_s).run()


def update_s(config: SimulationConfig, draws: Draws, drain_s: float) -> float:
    """U: seconds until every worker has the next version."""
    workers = range(config.engines.workers)
    if config.updates.mode != "rolling":
        return max(draws.install_s() + draws.transfer_s() for _ in workers)
    # f leases as a heap of the times at which each is free: a worker takes the earliest.
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
        """Seconds of a drain; 0 if engines stop during a step, because they then have no calls in flight."""
        self._works: list[tuple[float, float]] = list(
            zip(work.environment_s.tolist(), work.decoding.tolist(), strict=True)
        )
        self._grades: list[float] = work.grading_s.tolist()
        self._calls_s: list[float] = []
        size = config.trainer.group_size if config.work.sampling == "task" else 1
        self._free = [0.0] * (config.work.environments // size)
        """When each environment is free, or with sampling by task each place of a whole group."""
        self._complete: list[float] = []
        """Completion time of each group, in order of submission."""
        self._standing: list[tuple[float, int]] = []
        """Heap of the groups not taken: completion time, and the number of batches in the version they were
        released with."""
        self._latest = 0.0
        """When everything submitted is complete."""
        self._trained = 0.0
        self._paused = 0.0
        """The end of the last step in time without stopped engines, and the seconds of stopped engines."""
        self._before = (0.0, 0.0)
        """Seconds for which engines stop for the last step, and then for its version."""

    def run(self) -> StepTimes:
        """Run all steps."""
        options = self._options
        draws = Draws(self._config)
        served = 0.0
        out = StepTimes([], self._calls_s, gives_up=False)
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
        return StepTimes(out.trained_s, self._calls_s, gives_up)

    def _release(self, served: float, end: int, depth: int) -> None:
        """Submit the groups before `end`."""
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
        """When a group is complete that may begin at time `at`."""
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
        """When the next batch can be taken."""
        batch = self._options.groups_per_step
        if self._options.consumption == "wait":
            return max(self._complete[step * batch : (step + 1) * batch])
        return max(heapq.heappop(self._standing)[0] for _ in range(batch))

    def _step(self, take: float, step_s: float) -> None:
        """Train a batch. If it is complete soon enough, its step overlaps the pause after the last one."""
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
        """When every worker has the version of the last step."""
        mode = self._config.updates.mode
        if mode == "between":
            return max(self._trained, self._latest) + update
        return self._trained + (update if mode == "rolling" else self._drain_s)
