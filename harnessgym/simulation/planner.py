"""Submits groups as `harnessgym.rollout.plan` does, from counts instead of a store."""

import math
from collections import deque

from harnessgym.run_config.run import NodeSection
from harnessgym.scheduling.admission import SERVING, Admission, groups_holding, serving_step
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.simulation.fleet import SimulatedFleet
from harnessgym.simulation.measures import Measures
from harnessgym.simulation.node import Group, SimulatedNode
from harnessgym.simulation.settings import SimulationConfig


class SimulatedPlanner:
    """Submits groups as admission allows. Tasks of groups given up as too stale come first."""

    def __init__(
        self, config: SimulationConfig, measures: Measures, fleet: SimulatedFleet, node: SimulatedNode
    ) -> None:
        self._config = config
        self._measures = measures
        self._fleet = fleet
        self._node = node
        self.outstanding: dict[str, Group] = {}
        """Groups neither consumed nor given up, in order of submission."""
        self.consumed = 0
        self.trained = (0, 0)
        """Consumed groups trained into the newest version, and the number of batches."""
        self.chain = VersionChain(())
        self.again: deque[int] = deque()
        """Draws of tasks to submit again."""
        self.drawn = 0
        """Number of drawn groups submitted so far."""
        self.drawn_tokens = [0, 0]
        """Tokens of all their rollouts, and the number of these rollouts."""
        self._ordinal = 0
        work = config.work
        in_flight = NodeSection(max_running=work.environments, evaluate_at_once=work.graders).in_flight
        self._most = 1 + groups_holding(in_flight, config.trainer.group_size)

    @property
    def batches(self) -> int:
        """Batches to submit for: more than are trained, so that the end of a run behaves like its middle."""
        options = self._config.trainer
        ahead = options.max_staleness if options.over_launch is None else math.ceil(options.over_launch) - 1
        return options.steps + ahead + 1

    def capacity(self) -> int:
        """Groups that may be submitted now."""
        options = self._config.trainer
        served = serving_step(self._fleet.serving(), self.chain.depth)
        if served is None:
            return 0
        groups, step = self.trained if options.reuse else (0, 0)
        admission = Admission(
            max_staleness=options.max_staleness,
            groups_per_batch=options.groups_per_step,
            serving_step=served,
            submitted=self.consumed + len(self.outstanding),
            running=groups_holding(self._node.unfinished, options.group_size),
            max_running=self._most,
            total=self.batches * options.groups_per_step,
            over_launch=options.over_launch,
            replayed=options.replayed,
            consumed=groups,
            trained_step=step,
        )
        if self._config.work.sampling == "batch":
            begun = admission.submitted % options.groups_per_step
            # With sampling by batch, nothing is submitted until the whole previous batch has ended.
            if self._node.open and not begun:  # all of a batch is submitted, and some of it runs
                return 0
            return min(admission.capacity(), options.groups_per_step - begun)
        return admission.capacity()

    def submit(self) -> None:
        """Submit as many groups as admission allows."""
        capacity = self.capacity()
        oldest = (
            min((version for state, version in self._fleet.serving() if state in SERVING), default=0)
            if capacity
            else 0
        )
        for _ in range(capacity):
            self._ordinal += 1
            if self.again:
                self._begin(self.again.popleft(), oldest)
                continue
            group = self._begin(self.drawn, oldest)
            self.drawn += 1
            self.drawn_tokens[0] += sum(sum(member.work.tokens) for member in group.members)
            self.drawn_tokens[1] += len(group.members)

    def _begin(self, draw: int, version: int) -> Group:
        group = self.outstanding[str(self._ordinal)] = self._node.submit(self._ordinal, draw, version)
        return group

    def give_up(self, group_id: str, *, again: bool) -> None:
        """Give up a group that is too stale to train, and stop what still runs."""
        group = self.outstanding.pop(group_id)
        if not group.complete:
            self._measures.counts["groups stopped"] += 1
            self._node.stop(group)
        self._measures.counts["groups requeued" if again else "groups dropped"] += 1
        self._measures.counts["tokens dropped"] += group.tokens
        if again:
            self.again.append(group.draw)
