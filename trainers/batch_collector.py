"""Gathering a batch: which complete groups the next step takes, and which it gives up, as the run's settings
say.

What is decided is `harnessgym.scheduling.consumption.choose`; here it is asked with what the store has, and
what it gives up is written there at once, one transaction a group. So a trainer that is killed while it
gathers begins again and comes to the same batch.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter

from harnessgym.run_config.run import RunConfig
from harnessgym.scheduling.consumption import (
    Candidate,
    Choice,
    Replayable,
    choose,
    places_for_replays,
    replay,
)
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, backlog, rollouts
from harnessgym.store.backlog import BacklogGroup, GivenUp
from harnessgym.store.watch import StoreWatch
from trainers.batch import LoadedGroup, load_group

_POLL_S = 0.05


class BatchCollector:
    """Takes groups of one run from the store. Those read and not taken yet are kept for later batches."""

    def __init__(
        self,
        store: TraceStore,
        run_id: str,
        config: RunConfig,
        teaches: Callable[[LoadedGroup], bool] = attrgetter("signal"),
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.config = config
        self.options = config.trainer
        self.teaches = teaches
        self.waited_s = 0.0
        """Seconds spent waiting for groups since the last batch began."""
        self.replayed = 0
        """Groups of this batch that were trained before."""
        self.early = 0
        """Groups of it that were handed out before the last of them was complete, at least."""
        self._loaded: dict[str, LoadedGroup] = {}
        self._ages: dict[str, int] = {}
        """Staleness of what is loaded, in the step that is gathered for."""
        self._open_ages: dict[str, int] = {}
        """The same, of what open groups had sampled when the step was begun."""

    def groups(
        self,
        version: int,
        chain: VersionChain,
        busy: frozenset[str],
        looking: Callable[[], None] = lambda: None,
        trained: Sequence[Replayable] = (),
        joined: Callable[[LoadedGroup], LoadedGroup] = lambda group: group,
    ) -> Iterator[LoadedGroup]:
        """The batch that is trained from `version`, group by group: with `stream` each as soon as it is sure
        to be in it.

        `busy` are groups whose step is taken, though the store may not know yet. `looking` is called before
        every look at the store; what it raises ends the waiting. `trained` are groups that may be trained
        again; those that are come first. `joined` is asked what becomes of each group that is about to be in
        the batch (`trainers.success_pool`).
        """
        self._open_ages = {}
        self.waited_s = 0.0
        self._ages = {}
        self.replayed = 0
        self.early = 0
        wanted = self.options.groups_per_step
        taken = set(busy)
        for group in self._replays(version, chain, taken, trained):
            self.replayed += 1
            wanted -= 1
            yield joined(group)
        refills = self._refills(version)
        with self.store.watch(_POLL_S) as watch:
            while wanted:
                looking()
                candidates = self._candidates(version, chain, taken)
                found = choose(
                    candidates,
                    1 if self.options.stream else wanted,
                    self.options.max_staleness,
                    self.options.when_stale,
                )
                self._give_up(found, version)
                for group_id in found.take:
                    group = joined(self._loaded.pop(group_id))
                    if refills and not self.teaches(group):
                        refills -= self._drop(group_id, "no_signal", version)
                        continue
                    taken.add(group_id)
                    wanted -= 1
                    yield group
                if not found.take:
                    self.early = self.options.groups_per_step - wanted
                    self._wait(watch)

    def given_up(self, version: int) -> dict[GivenUp, int]:
        """Groups given up for the step from `version`, by reason."""
        return self.store.read(lambda conn: backlog.given_up(conn, self.run_id, version))

    def _refills(self, version: int) -> int:
        """How many groups without a signal this batch may still give up."""
        if self.config.filter.zero_signal == "leave_out":
            return 0
        allowed = self.config.filter.refill_batches * self.options.groups_per_step
        return max(0, allowed - self.given_up(version).get("no_signal", 0))

    def _replays(
        self, version: int, chain: VersionChain, taken: set[str], trained: Sequence[Replayable]
    ) -> Iterator[LoadedGroup]:
        """Groups to be trained again, with a signal, as many as leave the others their time."""
        options = self.options
        order = self.options.when_stale == "wait"
        reuse = self.config.replay.reuse
        if not reuse:
            return
        standing = [
            item
            for item in self.store.read(lambda conn: backlog.standing(conn, self.run_id))
            if item.id not in taken
        ]
        ages = [chain.between(version, item.submitted_version) for item in standing if order or item.complete]
        if not order:
            ages = [age for age in ages if age <= options.max_staleness]
        left = options.steps - chain.depth(version)
        places = places_for_replays(
            ages, options.groups_per_step, self.config.replayed, options.max_staleness, left
        )
        for group_id in replay(trained, reuse, options.max_staleness):
            if not places:
                return
            group = load_group(self.store, self.store.read(partial(rollouts.group, group_id=group_id)))
            if group.staleness(version, chain) <= options.max_staleness and self.teaches(group):
                places -= 1
                yield group

    def _candidates(self, version: int, chain: VersionChain, taken: set[str]) -> list[Candidate]:
        standing = self.store.read(lambda conn: backlog.standing(conn, self.run_id))
        free = [item for item in standing if item.id not in taken]
        for item in free:
            if item.complete and item.id not in self._ages:
                self._ages[item.id] = self._load(item).staleness(version, chain)
        ages = {
            item.id: self._ages[item.id] if item.complete else self._age_so_far(item, version, chain)
            for item in free
        }
        return [Candidate(item.id, item.ordinal, item.complete, ages[item.id]) for item in free]

    def _age_so_far(self, item: BacklogGroup, version: int, chain: VersionChain) -> int:
        """Staleness of what an open group has sampled; looked up once a step, where it can be beyond η."""
        if (
            self.options.when_stale == "wait"
            or chain.between(version, item.submitted_version) <= self.options.max_staleness
        ):
            return 0
        if item.id not in self._open_ages:
            oldest = self.store.read(partial(backlog.oldest_version, group_id=item.id))
            self._open_ages[item.id] = 0 if oldest is None else chain.between(version, oldest)
        return self._open_ages[item.id]

    def _load(self, item: BacklogGroup) -> LoadedGroup:
        if item.id not in self._loaded:
            found = self.store.read(partial(rollouts.group, group_id=item.id))
            self._loaded[item.id] = load_group(self.store, found)
        return self._loaded[item.id]

    def _give_up(self, found: Choice, version: int) -> None:
        for group_id in found.drop:
            self._drop(group_id, "too_stale", version)
        for group_id in found.requeue:
            self._drop(group_id, "requeued", version)

    def _drop(self, group_id: str, reason: GivenUp, version: int) -> bool:
        self._loaded.pop(group_id, None)
        done = partial(backlog.give_up, group_id=group_id, reason=reason, version=version)
        return self.store.write(done) or self.store.write(partial(backlog.stop, **done.keywords))

    def _wait(self, watch: StoreWatch) -> None:
        began = time.perf_counter()
        watch.wait()
        self.waited_s += time.perf_counter() - began
