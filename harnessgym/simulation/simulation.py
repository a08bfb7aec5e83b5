"""Simulates one run."""

from collections.abc import Callable
from dataclasses import dataclass

from harnessgym.errors import TrainerError
from harnessgym.simulation.clock import Clock
from harnessgym.simulation.draws import Draws
from harnessgym.simulation.fleet import SimulatedFleet
from harnessgym.simulation.learner import SimulatedLearner
from harnessgym.simulation.measures import Measures
from harnessgym.simulation.node import Group, SimulatedNode
from harnessgym.simulation.outcome import SimulationOutcome, outcome_of
from harnessgym.simulation.planner import SimulatedPlanner
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.simulation.updates import Updates
from harnessgym.store.workers import WorkerRow
from harnessgym.supervisor.stall import RunCounts, waiting

_DEATHS_PER_STEP = 20
"""A trainer that dies more often makes no progress, so the simulation stops."""

Observer = Callable[[int], None]
"""Called with the number of steps done after each step."""


@dataclass(frozen=True, slots=True)
class TokenBalance:
    """Account of every sampled token. Always `sampled == trained + dropped + failed + left`."""

    sampled: int
    trained: int
    dropped: int
    """In groups given up as too stale."""
    failed: int
    """In attempts that failed."""
    left: int
    """In groups neither trained nor given up."""


class Simulation:
    """A run from its first submission to its last step.

    ```python
    outcome = Simulation(SimulationConfig()).run()
    ```
    """

    def __init__(self, config: SimulationConfig) -> None:
        self.config = config
        self.clock = Clock()
        self.measures = Measures(self.clock)
        draws = self.draws = Draws(config)
        self.fleet = SimulatedFleet(self.clock, self.measures, config.engines, config.seed)
        self.updates = Updates(self.clock, draws, config, self.fleet)
        self.node = SimulatedNode(self.clock, self.measures, draws, config, self.fleet)
        self.planner = SimulatedPlanner(config, self.measures, self.fleet, self.node)
        self.learner = SimulatedLearner(self.clock, self.measures, draws, config, self.planner)
        self.node.completed = self._completed
        self.node.ended = self.planner.submit
        self.node.emptied = self.updates.follow
        self.updates.quiet = lambda: not self.node.open
        self.updates.served = self._served
        self.learner.published = self._published
        self.learner.halted = lambda halt: self.fleet.halt() if halt else self.fleet.resume()
        self._watched = False

    def run(self, observe: Observer = lambda _: None) -> SimulationOutcome:
        """Run to the end. Raises `TrainerError` if the run stalls, naming what waits for what."""
        self.begin()
        seen = 0
        while not self.learner.done:
            if not self.clock.step():
                raise self._standstill()
            if self.learner.step != seen:
                seen = self.learner.step
                observe(seen)
        self.fleet.settle()
        return outcome_of(self)

    def begin(self) -> None:
        """Submit the first groups and schedule failures. Call it before stepping the clock yourself."""
        if not self.config.trainer.warmup:
            self.measures.restart()
        self._plan_failures()
        self._served()

    def account(self) -> TokenBalance:
        """The tokens so far. Those of running calls count after `fleet.settle` or when the calls end."""
        counts = self.measures.counts
        working = self.learner.batch_in_progress
        left = sum(group.tokens for group in (*self.planner.outstanding.values(), *working))
        return TokenBalance(
            sampled=counts["tokens sampled"],
            trained=counts["tokens trained"],
            dropped=counts["tokens dropped"],
            failed=counts["tokens failed"],
            left=left,
        )

    def _completed(self, group: Group) -> None:
        self.learner.completed(group)
        if not self.node.open:
            self.updates.follow()
        self._served()

    def _published(self, version: int) -> None:
        self.updates.publish(version)
        self._served()

    def _served(self) -> None:
        """Submit what admission now allows, and check for a stall after all other events of this moment."""
        self.planner.submit()
        if not self._watched:
            self._watched = True
            self.clock.after(0.0, self._watch)

    def _watch(self) -> None:
        """Raises `TrainerError` if nothing runs and nothing was submitted."""
        self._watched = False
        idle = (
            self.learner.state == "idle"
            and not self.learner.done
            and not self.node.open
            and not self.updates.busy
        )
        if idle and not any(state == "dead" for state, _ in self.fleet.serving()):
            raise self._standstill()

    def _standstill(self) -> TrainerError:
        complete = sum(group.complete for group in self.planner.outstanding.values())
        standing = RunCounts(
            status="training",
            groups={"open": self.node.open, "complete": complete, "consumed": self.planner.consumed},
            rollouts={"running": self.measures.level("environments").value},
            version=self.learner.version,
            workers=tuple(
                WorkerRow(str(each.number), None, "simulated", "", each.version, each.state)
                for each in self.fleet.workers
            ),
        )
        return TrainerError(
            f"The simulated run is stalled after {self.clock.now:.0f} virtual seconds, at step "
            f"{self.learner.step} of {self.config.trainer.steps}: {waiting(standing)} {self.node.open} "
            f"groups are open, {complete} complete, and {self.planner.capacity()} may be submitted. Change "
            "the settings of the part that it waits for."
        )

    def _plan_failures(self) -> None:
        failures = self.config.failures
        if failures.worker_s:
            self._after_exponential(failures.worker_s, self._kill_worker)
        if failures.trainer_s:
            self._after_exponential(failures.trainer_s, self._kill_trainer)

    def _after_exponential(self, mean: float, action: Callable[[], None]) -> None:
        self.clock.after(float(self.draws.failures.exponential(mean)), action)

    def _kill_worker(self) -> None:
        alive = [worker for worker in self.fleet.workers if worker.state != "dead"]
        if alive:
            worker = alive[int(self.draws.failures.integers(len(alive)))]
            self.fleet.kill(worker)
            self.updates.died(worker)
            self.measures.counts["worker deaths"] += 1
            self.clock.after(self.config.failures.worker_restart_s, self.updates.restarted, worker)
        self._after_exponential(self.config.failures.worker_s, self._kill_worker)

    def _kill_trainer(self) -> None:
        if self.learner.state != "dead":
            self.learner.die()
        if self.measures.counts["trainer deaths"] > _DEATHS_PER_STEP * self.config.trainer.steps:
            raise TrainerError(
                f"The simulated trainer has died {self.measures.counts['trainer deaths']} times and is at "
                f"step {self.learner.step}: it loses more than it gains. Raise failures.trainer_s, or "
                "lower failures.versions_lost."
            )
        self._after_exponential(self.config.failures.trainer_s, self._kill_trainer)


def simulate(
    config: SimulationConfig, seeds: int, observe: Observer = lambda _: None
) -> list[SimulationOutcome]:
    """Run a configuration under `seeds` successive seeds, beginning with its own."""
    chosen = range(config.seed, config.seed + seeds)
    return [Simulation(config.model_copy(update={"seed": seed})).run(observe) for seed in chosen]
