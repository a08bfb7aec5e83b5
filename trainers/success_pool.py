"""DART's success pool: a group that failed as a whole is trained with one past success of its task beside it.

The success is one of the group when its advantages are estimated, whatever the estimator. A group that
teaches something by itself, as the estimator sees it, needs none.

The success keeps the log-probabilities and versions it was sampled with, so that η and every correction apply
to it as to any old token. It was trained before, in its own group: the ledger has an entry for each time, and
`replay.success_pool` bounds them. Which success is taken follows from the store and the newest step, whether
the store knows that step or not: a trainer that is killed comes to the same batch.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore
from harnessgym.store.ledger import StepRecord
from harnessgym.store.rollouts import GroupMember
from harnessgym.store.task_history import SUCCESS, Success, successes
from harnessgym.traces.trajectories import rows_of
from trainers.batch import LoadedGroup


class SuccessPool:
    """The successes that one step may take."""

    def __init__(
        self,
        store: TraceStore,
        run_id: str,
        policy_id: str,
        *,
        again: int,
        max_staleness: int,
        version: int,
        chain: VersionChain,
        last: StepRecord | None,
        teaches: Callable[[LoadedGroup], bool],
    ) -> None:
        """`again` is how many further times a success may be trained; `last` is the newest step, known to the
        store or not.

        `teaches` says whether a group has a signal as it is.
        """
        self._store = store
        self._run_id = run_id
        self._policy_id = policy_id
        self._again = again
        self._max_staleness = max_staleness
        self._version = version
        self._chain = chain
        self._teaches = teaches
        self._last_groups = frozenset(last.group_ids if last else ())
        self._last_rollouts = frozenset(entry.rollout_id for entry in last.trained) if last else frozenset()
        self._last_version = last.version.version if last else None
        self._here: set[str] = set()
        """Groups of this step, and rollouts that were taken into them."""

    def join(self, group: LoadedGroup) -> LoadedGroup:
        """A group of this step, with a success if it failed and there is one. Call it for every group, in
        order.
        """
        self._here.add(group.group.id)
        if not self._again or not group.rewards.size or group.graded.max() > SUCCESS or self._teaches(group):
            return group
        ask = partial(successes, policy_id=self._policy_id, task_id=group.group.task_id, run_id=self._run_id)
        for item in self._store.read(partial(ask, also=self._last_groups)):
            if (
                item.group_id in self._here
                or item.rollout_id in self._here
                or self._often(item) > self._again
            ):
                continue
            read = partial(rows_of, rollout_id=item.rollout_id, group_id=group.group.id)
            found = self._store.read(read)
            if self._chain.oldest(self._version, (row.versions for row in found.rows)) > self._max_staleness:
                return group  # those after it are of older groups
            self._here.add(item.rollout_id)
            member = GroupMember(item.rollout_id, item.slot, item.reward, "valid", item.graded)
            joined = replace(group.group, members=(*group.group.members, member))
            credit = (*group.credit, found.credit) if group.credit else ()
            return replace(group, group=joined, rows=(*group.rows, found.rows), credit=credit, borrowed=1)
        return group

    def _often(self, item: Success) -> int:
        """How often it was trained along the surviving chain."""
        known = [
            version
            for version in item.versions
            if version != self._last_version and self._chain.survives(version)
        ]
        return len(known) + (item.rollout_id in self._last_rollouts)
