"""Gathering where a run trains several policies: the trainers of all take the same groups, in the same order.

Whichever trainer comes first settles in the store which groups a step takes; the others find it there. So a
trainer that is killed, or that lags behind, takes what the others took. The trained tokens are those that its
own policy sampled; but a group is too stale for all as soon as any policy's tokens are, for no policy may be
left behind.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from harnessgym.run_config.run import RunConfig
from harnessgym.scheduling.consumption import Candidate, Replayable, choose
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, backlog, policies, rollouts
from harnessgym.store.backlog import BacklogGroup, GivenUp
from harnessgym.store.ledger import ExcludedTokens
from harnessgym.store.rollouts import GroupRow
from harnessgym.store.watch import StoreWatch
from harnessgym.traces.trajectories import Trajectory, rows_of
from trainers.batch import LoadedGroup, loaded, ranges_of

_POLL_S = 0.05
Read = tuple[GroupRow, tuple[Trajectory, ...]]
"""A group and what all policies said in its rollouts."""


class SharedGathering:
    """What `trainers.batch_collector.BatchCollector` is for one of several policies."""

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
        """None ever is: a batch is every policy's."""
        self.early = 0
        """See `Gathering`."""
        self._read: dict[str, Read] = {}
        self._chains: dict[str, VersionChain] = {}
        self._known_ages: dict[str, dict[str, int]] = {}
        """See `_ages`; of this batch alone, as are those of groups that run."""
        self._open_ages: dict[str, int] = {}
        self._step = 0
        """Steps behind the one that is gathered for: the same for every policy."""

    def groups(
        self,
        version: int,
        chain: VersionChain,
        busy: frozenset[str] = frozenset(),  # noqa: ARG002 - what a step has taken is in its batch
        looking: Callable[[], None] = lambda: None,
        trained: Sequence[Replayable] = (),  # noqa: ARG002 - see `replayed`
    ) -> Iterator[LoadedGroup]:
        """See `Gathering.groups`."""
        self.waited_s, self.early, self._step = 0.0, 0, chain.depth(version)
        wanted = self.options.groups_per_step
        known = list[str]()
        self._chains = {self.policy_id: chain}
        self._known_ages = {}
        self._open_ages = {}
        with self.store.watch(_POLL_S) as watch:
            while True:
                looking()
                settled = self.store.read(lambda conn: backlog.batch(conn, self.run_id, self._step + 1))
                for group_id in settled[len(known) :]:
                    known.append(group_id)
                    yield self._own(group_id)
                if len(known) >= wanted:
                    return
                if not self._settle(len(known)):
                    self.early = len(known)
                    self._wait(watch)

    def given_up(self, version: int) -> dict[GivenUp, int]:  # noqa: ARG002 - policies count their versions apart, not steps
        """Groups given up for the step that was gathered last, by reason."""
        return self.store.read(lambda conn: backlog.given_up(conn, self.run_id, self._step))

    def _settle(self, known: int) -> bool:
        """Put groups into the step's batch, behind the `known` ones, and give others up. False if there are
        none for now.

        All of it at once, or nothing if another trainer has settled something meanwhile: then what is free is
        another.
        """
        options = self.options
        standing = self.store.read(lambda conn: backlog.free(conn, self.run_id))
        free = {item.id for item in standing}
        self._read = {group_id: read for group_id, read in self._read.items() if group_id in free}
        candidates = [Candidate(item.id, item.ordinal, item.complete, self._age(item)) for item in standing]
        wanted = 1 if options.stream else options.groups_per_step - known
        found = choose(candidates, wanted, options.max_staleness, options.when_stale)
        allowed = (
            0
            if self.filter.zero_signal == "leave_out"
            else self.filter.refill_batches * options.groups_per_step
        )
        left = max(0, allowed - self.given_up(0).get("no_signal", 0)) if allowed else 0
        barren = [group_id for group_id in found.take if not _signal(self._load(group_id)[0])][:left]
        take = [group_id for group_id in found.take if group_id not in barren]
        leave: dict[GivenUp, Sequence[str]] = {
            "too_stale": found.drop,
            "requeued": found.requeue,
            "no_signal": barren,
        }
        if not take and not any(leave.values()):
            return False
        step = self._step + 1
        self.store.write(
            lambda conn: backlog.settle_batch(conn, self.run_id, step, known, take, leave, allowed)
        )
        return True

    def _age(self, item: BacklogGroup) -> int:
        """Staleness of a group's oldest token, whichever policy's; of one that runs, as it is known, once
        a step.
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
        """The staleness of the oldest of some versions, one of each policy; 0 of none."""
        return max((self._step - self._depth(*version) for version in versions.items()), default=0)

    def _ages(self, group_id: str) -> dict[str, int]:
        """By policy: the staleness of a group's oldest token in the step that is gathered for."""
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

        A trainer that goes on from an earlier version may find its own tokens too old in a batch that the
        others have trained on: those tokens are excluded.
        """
        group, found = self._load(group_id)
        too_old = self._ages(group_id).get(self.policy_id, 0) > self.options.max_staleness
        self._read.pop(group_id)
        own = loaded(group, [trajectory.of_policy(self.policy_id) for trajectory in found])
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
            reads = (
                partial(rows_of, rollout_id=member.rollout_id, group_id=group_id) for member in group.members
            )
            self._read[group_id] = group, tuple(self.store.read(read) for read in reads)
        return self._read[group_id]

    def _depth(self, policy_id: str, version: int) -> int:
        """Batches behind a version of any policy; its chain is read again when a version is met that is
        new.
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
    """Whether its rewards differ: what an estimator makes of a group may hang on the policy, and all give
    up the same.
    """
    return len({member.reward for member in group.members}) > 1
