"""Collects a batch: which complete groups the next step takes and which it gives up, by the run's settings.

`harnessgym.scheduling.consumption.choose` decides; the collectors give it the groups of the store and write
the groups that are given up there at once, in one transaction each. A trainer that is killed while it
collects starts again and arrives at the same batch.

If a run trains several policies, `SharedBatchCollector` makes the trainers of all of them take the same
groups in the same order. The first trainer to choose settles a step's groups in the store, and the others
read them there; so a trainer that is killed or lags behind takes what the others took. Each trains the tokens
that its own policy sampled. A group is too stale for all as soon as it is too stale for one.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np

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
from harnessgym.store import TraceStore, backlog, policies, rollouts
from harnessgym.store.backend import StoreWatch
from harnessgym.store.backlog import BacklogGroup, GivenUp
from harnessgym.store.ledger import ExcludedTokens
from harnessgym.store.rollouts import GroupRow
from harnessgym.traces.trajectories import Trajectory, rows_of
from trainers.batch import LoadedGroup, load_group, loaded, ranges_of

_POLL_S = 0.05


class BatchCollector:
    """Takes the groups of a run from the store. Groups that were read but not taken are kept for later
    batches.
    """

    def __init__(
        self,
        store: TraceStore,
        run_id: str,
        config: RunConfig,
        has_signal: Callable[[LoadedGroup], bool] = attrgetter("signal"),
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.config = config
        self.options = config.trainer
        self.has_signal = has_signal
        self.waited_s = 0.0
        """Seconds spent waiting for groups since the last batch began."""
        self.replayed = 0
        """Groups of this batch that were trained before."""
        self.early = 0
        """Lower bound of the groups that were handed out before the last one of this batch was complete."""
        self._loaded: dict[str, LoadedGroup] = {}
        self._ages: dict[str, int] = {}
        """Staleness of the loaded groups in the step that is being collected."""
        self._open_ages: dict[str, int] = {}
        """Staleness of the tokens that open groups had when the step began."""

    def groups(
        self,
        version: int,
        chain: VersionChain,
        busy: frozenset[str],
        before_query: Callable[[], None] = lambda: None,
        trained: Sequence[Replayable] = (),
        transform: Callable[[LoadedGroup], LoadedGroup] = lambda group: group,
    ) -> Iterator[LoadedGroup]:
        """The batch of the step from `version`, group by group; with `stream` each group as soon as it is
        certain to be in it.

        `busy` are groups of steps that may not be in the store yet. `before_query` is called before each
        query of the store; an exception from it ends the wait. `trained` are groups that may be trained
        again; those that are chosen come first. `transform` may replace each group before it enters the
        batch (`trainers.replay.SuccessPool`).
        """
        self._open_ages = {}
        self.waited_s = 0.0
        self._ages = {}
        self.replayed = 0
        self.early = 0
        wanted = self.options.groups_per_step
        used_group_ids = set(busy)
        for group in self._replays(version, chain, used_group_ids, trained):
            self.replayed += 1
            wanted -= 1
            yield transform(group)
        refills = self._refills(version)
        with self.store.watch(_POLL_S) as watch:
            while wanted:
                before_query()
                candidates = self._candidates(version, chain, used_group_ids)
                choice = choose(
                    candidates,
                    1 if self.options.stream else wanted,
                    self.options.max_staleness,
                    self.options.when_stale,
                )
                self._give_up(choice, version)
                for group_id in choice.take:
                    group = transform(self._loaded.pop(group_id))
                    if refills and not self.has_signal(group):
                        refills -= self._drop(group_id, "no_signal", version)
                        continue
                    used_group_ids.add(group_id)
                    wanted -= 1
                    yield group
                if not choice.take:
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
        self, version: int, chain: VersionChain, group_ids: set[str], trained: Sequence[Replayable]
    ) -> Iterator[LoadedGroup]:
        """Groups with a signal to train again, as many as fit without making the waiting groups too stale."""
        options = self.options
        order = self.options.when_stale == "wait"
        reuse = self.config.replay.reuse
        if not reuse:
            return
        standing = [
            item
            for item in self.store.read(lambda conn: backlog.standing(conn, self.run_id))
            if item.id not in group_ids
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
            group = self._read(group_id)
            if group.staleness(version, chain) <= options.max_staleness and self.has_signal(group):
                places -= 1
                yield group

    def _candidates(self, version: int, chain: VersionChain, group_ids: set[str]) -> list[Candidate]:
        standing = self.store.read(lambda conn: backlog.standing(conn, self.run_id))
        free = [item for item in standing if item.id not in group_ids]
        for item in free:
            if item.complete and item.id not in self._ages:
                self._ages[item.id] = self._load(item).staleness(version, chain)
        ages = {
            item.id: self._ages[item.id] if item.complete else self._age_so_far(item, version, chain)
            for item in free
        }
        return [Candidate(item.id, item.ordinal, item.complete, ages[item.id]) for item in free]

    def _age_so_far(self, item: BacklogGroup, version: int, chain: VersionChain) -> int:
        """Staleness of an open group's tokens so far; queried once a step, and only if it can exceed η."""
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
            self._loaded[item.id] = self._read(item.id)
        return self._loaded[item.id]

    def _read(self, group_id: str) -> LoadedGroup:
        group = self.store.read(partial(rollouts.group, group_id=group_id))
        return load_group(self.store, group, with_experts=self.options.routing_replay == "auto")

    def _give_up(self, choice: Choice, version: int) -> None:
        for group_id in choice.drop:
            self._drop(group_id, "too_stale", version)
        for group_id in choice.requeue:
            self._drop(group_id, "requeued", version)

    def _drop(self, group_id: str, reason: GivenUp, version: int) -> bool:
        self._loaded.pop(group_id, None)
        give_up = partial(backlog.give_up, group_id=group_id, reason=reason, version=version)
        return self.store.write(give_up) or self.store.write(partial(backlog.stop, **give_up.keywords))

    def _wait(self, watch: StoreWatch) -> None:
        began = time.perf_counter()
        watch.wait()
        self.waited_s += time.perf_counter() - began


Read = tuple[GroupRow, tuple[Trajectory, ...]]
"""A group and the trajectories of all policies in its rollouts."""


class SharedBatchCollector:
    """The `BatchCollector` of one of several policies."""

    def __init__(
        self,
        store: TraceStore,
        run_id: str,
        policy_id: str,
        config: RunConfig,
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.policy_id = policy_id
        self.options = config.trainer
        self.filter = config.filter
        self.waited_s = 0.0
        """Seconds spent waiting for groups since the last batch began."""
        self.replayed = 0
        """Always 0: all policies share a batch."""
        self.early = 0
        """See `BatchCollector`."""
        self._read: dict[str, Read] = {}
        self._chains: dict[str, VersionChain] = {}
        self._known_ages: dict[str, dict[str, int]] = {}
        """Cache of `_ages` for this batch."""
        self._open_ages: dict[str, int] = {}
        """Staleness of running groups, for this batch."""
        self._step = 0
        """Steps before the one that is being collected; the same for every policy."""

    def groups(
        self,
        version: int,
        chain: VersionChain,
        busy: frozenset[str] = frozenset(),  # noqa: ARG002 - what a step has taken is in its batch
        before_query: Callable[[], None] = lambda: None,
        trained: Sequence[Replayable] = (),  # noqa: ARG002 - see `replayed`
    ) -> Iterator[LoadedGroup]:
        """See `BatchCollector.groups`."""
        self.waited_s = 0.0
        self.early = 0
        self._step = chain.depth(version)
        wanted = self.options.groups_per_step
        known = list[str]()
        self._chains = {self.policy_id: chain}
        self._known_ages = {}
        self._open_ages = {}
        with self.store.watch(_POLL_S) as watch:
            while True:
                before_query()
                settled = self.store.read(lambda conn: backlog.batch(conn, self.run_id, self._step + 1))
                for group_id in settled[len(known) :]:
                    known.append(group_id)
                    yield self._own(group_id)
                if len(known) >= wanted:
                    return
                if not self._settle(len(known)):
                    self.early = len(known)
                    self._wait(watch)

    # `version` is not used: each policy numbers its own versions, but all share the step.
    def given_up(self, version: int) -> dict[GivenUp, int]:  # noqa: ARG002
        """Groups given up for the step that was collected last, by reason."""
        return self.store.read(lambda conn: backlog.given_up(conn, self.run_id, self._step))

    def _settle(self, known: int) -> bool:
        """Add groups to the step's batch after the `known` ones, and give others up. False if there are none.

        This is one transaction. It does nothing if another trainer has settled groups in the meantime.
        """
        options = self.options
        standing = self.store.read(lambda conn: backlog.free(conn, self.run_id))
        free = {item.id for item in standing}
        self._read = {group_id: read for group_id, read in self._read.items() if group_id in free}
        candidates = [Candidate(item.id, item.ordinal, item.complete, self._age(item)) for item in standing]
        wanted = 1 if options.stream else options.groups_per_step - known
        choice = choose(candidates, wanted, options.max_staleness, options.when_stale)
        allowed = (
            0
            if self.filter.zero_signal == "leave_out"
            else self.filter.refill_batches * options.groups_per_step
        )
        left = max(0, allowed - self.given_up(0).get("no_signal", 0)) if allowed else 0
        no_signal = [group_id for group_id in choice.take if not _signal(self._load(group_id)[0])][:left]
        take = [group_id for group_id in choice.take if group_id not in no_signal]
        leave: dict[GivenUp, Sequence[str]] = {
            "too_stale": choice.drop,
            "requeued": choice.requeue,
            "no_signal": no_signal,
        }
        if not take and not any(leave.values()):
            return False
        # True also if another trainer was faster and nothing was written: the caller then reads the batch
        # again and finds that trainer's groups.
        step = self._step + 1
        self.store.write(
            lambda conn: backlog.settle_batch(conn, self.run_id, step, known, take, leave, allowed)
        )
        return True

    def _age(self, item: BacklogGroup) -> int:
        """Staleness of a group's oldest token of any policy. For a running group it is queried once a
        step.
        """
        if item.complete:
            return max(self._ages(item.id).values(), default=0)
        if (
            self.options.when_stale == "wait"
            or self._oldest(item.submitted_versions) <= self.options.max_staleness
        ):
            return 0
        if item.id not in self._open_ages:
            self._open_ages[item.id] = self._oldest(
                self.store.read(partial(backlog.oldest_versions, group_id=item.id))
            )
        return self._open_ages[item.id]

    def _oldest(self, versions: Mapping[str, int]) -> int:
        """The largest staleness of some versions, one per policy; 0 if there are none."""
        return max((self._step - self._depth(*version) for version in versions.items()), default=0)

    def _ages(self, group_id: str) -> dict[str, int]:
        """Per policy, the staleness of a group's oldest token in the step that is being collected."""
        if group_id not in self._known_ages:
            ages: dict[str, int] = {}
            for row in (row for trajectory in self._load(group_id)[1] for row in trajectory.rows):
                sampled = np.unique(row.versions[row.mask == 1]).tolist()
                old = [self._step - self._depth(row.policy_id, version) for version in sampled]
                ages[row.policy_id] = max([*old, ages.get(row.policy_id, 0)])
            self._known_ages[group_id] = ages
        return self._known_ages[group_id]

    def _own(self, group_id: str) -> LoadedGroup:
        """A group as this policy trains on it.

        A trainer that resumes from an earlier version may find its own tokens too stale in a batch that the
        others have trained on. Those tokens are excluded.
        """
        group, trajectories = self._load(group_id)
        too_old = self._ages(group_id).get(self.policy_id, 0) > self.options.max_staleness
        self._read.pop(group_id)
        own = loaded(group, [trajectory.of_policy(self.policy_id) for trajectory in trajectories])
        if not too_old:
            return own
        stale = [
            ExcludedTokens(member.rollout_id, item.call_id, item.start, item.end, "too_stale")
            for member, rows in zip(group.members, own.rows, strict=True)
            for item in ranges_of(rows, 0.0)
        ]
        return replace(own, rows=((),) * len(own.rows), excluded=(*own.excluded, *stale))

    def _load(self, group_id: str) -> Read:
        if group_id not in self._read:
            group = self.store.read(partial(rollouts.group, group_id=group_id))
            with_experts = self.options.routing_replay == "auto"
            reads = (
                partial(rows_of, rollout_id=member.rollout_id, group_id=group_id, with_experts=with_experts)
                for member in group.members
            )
            self._read[group_id] = group, tuple(self.store.read(read) for read in reads)
        return self._read[group_id]

    def _depth(self, policy_id: str, version: int) -> int:
        """Steps that led to a version of any policy. The policy's chain is read again for an unknown
        version.
        """
        chain = self._chains.get(policy_id)
        if chain is None or version not in chain:
            chain = VersionChain(self.store.read(lambda conn: policies.versions(conn, policy_id)))
            self._chains[policy_id] = chain
        return chain.depth(version)

    def _wait(self, watch: StoreWatch) -> None:
        began = time.perf_counter()
        watch.wait()
        self.waited_s += time.perf_counter() - began


def _signal(group: GroupRow) -> bool:
    """Whether the group's rewards differ."""
    # Not by the estimator: its answer may depend on the policy, and all trainers must give up the same
    # groups.
    return len({member.reward for member in group.members}) > 1
