"""The simulated trainer: what it consumes, and its versions."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from harnessgym.scheduling.consumption import Candidate, Replayable, choose, places_for_replays, replay
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.simulation.clock import Clock
from harnessgym.simulation.draws import Draws
from harnessgym.simulation.measures import Measures
from harnessgym.simulation.node import Group
from harnessgym.simulation.planner import SimulatedPlanner
from harnessgym.simulation.settings import SimulationConfig
from harnessgym.store.policies import PolicyVersion


class Replays:
    """Chooses the groups that a batch trains again."""

    def __init__(self, config: SimulationConfig, planner: SimulatedPlanner) -> None:
        self._options = config.trainer
        self._planner = planner
        self.into: dict[int, list[Group]] = {}
        """Replayed groups by the surviving version they were trained into."""

    def choose(
        self, version: int, ledger: Mapping[int, Sequence[Group]], staleness: Callable[[Group], int]
    ) -> list[Group]:
        """Choose for the step from `version`. `ledger` holds the groups first trained into each version."""
        options = self._options
        if not options.reuse:
            return []
        # Older groups are beyond η and cannot be trained again.
        recent = sorted(ledger)[-options.max_staleness :]
        groups_by_id = {group.id: group for into in recent for group in (*ledger[into], *self.into[into])}
        times = Counter(group.id for into in recent for group in (*ledger[into], *self.into[into]))
        trained = [
            Replayable(group.id, group.ordinal, times[group.id], staleness(group))
            for group in groups_by_id.values()
        ]
        return [
            groups_by_id[name]
            for name in replay(trained, options.reuse, options.max_staleness)[
                : self._places(version, len(ledger))
            ]
        ]

    def _places(self, version: int, step: int) -> int:
        """Places for replays that make no outstanding group too stale."""
        options = self._options
        ordered = self._options.consumption == "wait"
        standing = [group for group in self._planner.outstanding.values() if ordered or group.complete]
        ages = [self._planner.chain.between(version, group.submitted_version) for group in standing]
        if not ordered:
            ages = [age for age in ages if age <= options.max_staleness]
        left = self._planner.batches - step
        return places_for_replays(
            ages, options.groups_per_step, options.replayed, options.max_staleness, left
        )


class SimulatedLearner:
    """Trains on batches and publishes versions until `done`."""

    def __init__(
        self,
        clock: Clock,
        measures: Measures,
        draws: Draws,
        config: SimulationConfig,
        planner: SimulatedPlanner,
    ) -> None:
        self._clock = clock
        self._measures = measures
        self._draws = draws
        self._planner = planner
        self._options = config.trainer
        self._failures = config.failures
        self._working, self._complete = measures.level("trainer"), measures.level("groups complete")
        self.versions: list[PolicyVersion] = [_version(0, None)]
        self.version = 0
        self.steps: list[tuple[int, float]] = []
        """Versions and their times in order, including those of lost checkpoints."""
        self.ledger: dict[int, list[Group]] = {}
        """Groups by the surviving version they were first trained into."""
        self.state: str = "idle"
        self._life = 0
        self._look = False
        """Whether a group may have become too stale since the last look."""
        self._gap: Group | None = None
        """With `wait`: the first incomplete group in line. While it is open, other groups need no look."""
        self._batch: list[Group] = []
        """Groups that the step in progress has taken."""
        self._again: list[Group] | None = None
        """Groups it trains again; None before they are chosen."""
        self.replays = Replays(config, planner)
        self.published: Callable[[int], None] = lambda _: None
        self.halted: Callable[[bool], None] = lambda _: None
        self._learn_versions()

    @property
    def step(self) -> int:
        """Number of batches trained into the weights."""
        return len(self.ledger)

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self._options.steps

    @property
    def batch_in_progress(self) -> tuple[Group, ...]:
        """Groups taken and not yet trained."""
        return tuple(self._batch)

    def completed(self, group: Group) -> None:
        """Note a completed group."""
        self._complete.add(1)
        self._look = self._look or self._staleness(group) > self._options.max_staleness
        self.consider()

    def consider(self) -> None:
        """If idle, take the next batch or part of one, and give up stale groups."""
        if self.state != "idle" or self.done:
            return
        if self._again is None:
            self._again = self.replays.choose(self.version, self.ledger, self._staleness)
        part = (self._options.groups_per_step - len(self._again)) // self._options.micro_batches
        gave_up = False
        looking = True
        while looking:
            choice = choose(
                self._candidates(part), part, self._options.max_staleness, self._options.consumption
            )
            for group_id in (*choice.drop, *choice.requeue):
                self._complete.add(-int(self._planner.outstanding[group_id].complete))
                self._planner.give_up(group_id, again=group_id in choice.requeue)
            if choice.take:
                self._work([self._planner.outstanding.pop(group_id) for group_id in choice.take])
            looking = (
                bool(choice.drop or choice.requeue) and not choice.take
            )  # the next groups may fill the batch
            gave_up = gave_up or bool(choice.drop or choice.requeue)
        if gave_up:
            self._planner.submit()

    def die(self) -> None:
        """Kill the trainer. Its batch is not trained and returns to the queue."""
        # Events scheduled by the earlier life compare this number and do nothing.
        self._life += 1
        if self.state == "working":
            self._working.add(-1)
        if self._batch and self._options.alone:
            self.halted(False)
        self._give_back(self._batch)
        self._batch = []
        self._again = None
        self.state = "dead"
        self._measures.counts["trainer deaths"] += 1
        self._clock.after(self._failures.trainer_restart_s, self._resume, self._life)

    def _candidates(self, part: int) -> list[Candidate]:
        """The groups that can affect the choice: the next in line, or all that are complete or too stale."""
        waits = self._options.consumption == "wait"
        most = self._options.max_staleness
        waited_for = self._gap is not None and not self._gap.complete
        # Most completions cannot make a batch. Checking that first keeps a look from costing all groups.
        if not self._look and (self._complete.value < part or waited_for):
            return []
        self._look, groups = False, self._planner.outstanding.values()
        if waits:
            self._gap = next((item for item in islice(groups, part) if not item.complete), None)
        ages = ((item, self._staleness(item)) for item in (islice(groups, part) if waits else groups))
        return [
            Candidate(item.id, item.ordinal, item.complete, age)
            for item, age in ages
            if waits or item.complete or age > most
        ]

    def _staleness(self, group: Group) -> int:
        """Staleness of the oldest token in the next step; 0 for an open group that cannot be beyond η."""
        between = self._planner.chain.between
        if group.complete:
            return max((between(self.version, version) for version in group.versions), default=0)
        if between(self.version, group.submitted_version) <= self._options.max_staleness:
            return 0
        sampled = {version for member in group.members for version in member.spans}
        return max((between(self.version, version) for version in sampled), default=0)

    def _work(self, groups: list[Group]) -> None:
        """Start to train on a batch or the next part of one."""
        if not self._batch and self._options.alone:
            self.halted(True)
        self._batch += groups
        self._complete.add(-len(groups))
        self._planner.consumed += len(groups)
        self.state = "working"
        self._working.add(1)
        share = 1 / self._options.micro_batches
        self._clock.after(share * self._draws.step_s[self.step], self._worked, self._life)

    def _worked(self, life: int) -> None:
        if life != self._life:
            return
        self._working.add(-1)
        self.state = "idle"
        if len(self._batch) + len(self._again or ()) == self._options.groups_per_step:
            self._commit()
        self.consider()

    def _commit(self) -> None:
        """Finish the batch: enter it in the ledger and publish a new version."""
        batch = self._batch
        again = self._again or []
        start = self.version
        self._batch = []
        self._again = None
        self._count(batch, again, start, 1)
        self.version = self.versions[-1].version + 1
        self.versions.append(_version(self.version, start))
        self.ledger[self.version], self.replays.into[self.version] = batch, again
        self.steps.append((self.version, self._clock.now))
        self._learn_versions()
        if self.step == self._options.warmup:
            self._measures.restart()
        self.published(self.version)
        if self._options.alone:
            self.halted(False)

    def _count(self, batch: list[Group], again: list[Group], start: int, sign: int) -> None:
        """Count a batch trained from version `start`; with `sign` -1 undo that count."""
        measures = self._measures
        tokens_by = Counter[int]()
        rollouts_by = Counter[int]()
        groups = [*batch, *again]
        between = self._planner.chain.between
        staleness = {version: between(start, version) for group in groups for version in group.versions}
        for rollout in (member for group in groups for member in group.members):
            for version, tokens in rollout.spans.items():
                tokens_by[staleness[version]] += tokens
            rollouts_by[len(rollout.spans)] += 1
        for total, counts in ((measures.staleness, tokens_by), (measures.versions, rollouts_by)):
            for value, count in counts.items():
                total[value] += sign * count
                if not total[value]:
                    del total[value]
        replayed = sum(group.tokens for group in again), sum(len(group.members) for group in again)
        if again:
            measures.counts["tokens replayed"] += sign * replayed[0]
            measures.counts["rollouts replayed"] += sign * replayed[1]
        measures.counts["tokens trained"] += sign * (sum(tokens_by.values()) - replayed[0])
        measures.counts["rollouts trained"] += sign * (sum(rollouts_by.values()) - replayed[1])

    def _resume(self, life: int) -> None:
        """Resume from the newest surviving checkpoint. Version numbers are never reused."""
        if life != self._life:
            return
        for version in sorted(self.ledger)[::-1][: self._failures.versions_lost]:
            groups = self.ledger.pop(version)
            start = self.versions[version].parent_version
            assert start is not None, "a version that was trained has a parent"
            self._count(groups, self.replays.into.pop(version), start, -1)
            self._measures.counts["versions orphaned"] += 1
            self._give_back(groups)
            self.versions[version] = replace(self.versions[version], orphaned=True)
        self.version = max(self.ledger, default=0)
        self._learn_versions()
        self.state = "idle"
        self._again = None
        self.published(self.version)
        self.consider()

    def _give_back(self, groups: list[Group]) -> None:
        """Return taken groups to the outstanding ones, in order of submission."""
        self._planner.consumed -= len(groups)
        self._complete.add(len(groups))
        self._gap = None
        groups_by_id = {**self._planner.outstanding, **{group.id: group for group in groups}}
        self._planner.outstanding.clear()
        self._planner.outstanding.update(sorted(groups_by_id.items(), key=lambda item: item[1].ordinal))

    def _learn_versions(self) -> None:
        self._look = True
        self._planner.chain = VersionChain(self.versions)
        self._planner.trained = (sum(map(len, self.ledger.values())), self.step)


def _version(number: int, parent: int | None) -> PolicyVersion:
    return PolicyVersion(
        number, parent, "full", path="", step=number, checksum="", bytes=0, committed=True, orphaned=False
    )
