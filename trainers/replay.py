"""Trains groups again: whole groups, and single past successes together with groups that failed.

`SuccessPool` is DART's: a group in which every rollout failed is trained together with one past success of
its task. The success counts as a member of the group when advantages are estimated. A group that has a signal
without it gets none.

The success keeps the logprobs and versions that it was sampled with, so η and every correction apply to it as
to any old token. The ledger has an entry for each time it is trained, and `replay.success_pool` limits these.
The choice depends only on the store and the newest step, whether or not the store knows that step yet, so a
trainer that is killed and restarted makes the same batch.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from harnessgym.scheduling.consumption import Replayable
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, ledger
from harnessgym.store.ledger import StepRecord, TrainedGroup
from harnessgym.store.rollouts import GroupMember
from harnessgym.store.task_history import SUCCESS, Success, successes
from harnessgym.traces.trajectories import rows_of
from trainers.batch import LoadedGroup


def replayable(
    store: TraceStore,
    policy_id: str,
    version: int,
    chain: VersionChain,
    max_staleness: int,
    newest: Sequence[TrainedGroup],
) -> list[Replayable]:
    """Groups that a step from `version` might train again, in order of submission.

    `newest` are the groups of the newest step, which the store may not know yet. It is enough to look at the
    last η steps: a group's tokens are at least as old as the first step that trained it.
    """
    recent = chain.surviving[-max_staleness:]
    known = store.read(lambda conn: ledger.trained_into(conn, policy_id, recent))
    by_group = defaultdict[str, dict[int, TrainedGroup]](dict)
    for item in (*known, *newest):
        if item.version in recent:
            by_group[item.id][item.version] = item
    out = []
    for group_id, by_version in by_group.items():
        last = by_version[max(by_version)]
        staleness = chain.between(version, last.version) + 1 + last.max_staleness
        out.append(Replayable(group_id, last.ordinal, len(by_version), staleness))
    return sorted(out, key=lambda item: item.ordinal)


class SuccessPool:
    """The past successes that one step may use."""

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
        has_signal: Callable[[LoadedGroup], bool],
    ) -> None:
        """`again` is how many more times a success may be trained; `last` is the newest step, which may not
        be in the store yet; `has_signal` says whether a group has a signal without a success.
        """
        self._store = store
        self._run_id = run_id
        self._policy_id = policy_id
        self._again = again
        self._max_staleness = max_staleness
        self._version = version
        self._chain = chain
        self._has_signal = has_signal
        self._last_groups = frozenset(last.group_ids if last else ())
        self._last_rollouts = frozenset(entry.rollout_id for entry in last.trained) if last else frozenset()
        self._last_version = last.version.version if last else None
        self._here: set[str] = set()
        """Ids of this step's groups, and of the successes that were added to them."""

    def join(self, group: LoadedGroup) -> LoadedGroup:
        """A group of this step, with a success added if it failed and there is one. Call this for every
        group, in order.
        """
        self._here.add(group.group.id)
        if (
            not self._again
            or not group.rewards.size
            or group.graded.max() > SUCCESS
            or self._has_signal(group)
        ):
            return group
        query = partial(
            successes, policy_id=self._policy_id, task_id=group.group.task_id, run_id=self._run_id
        )
        for item in self._store.read(partial(query, also=self._last_groups)):
            if (
                item.group_id in self._here
                or item.rollout_id in self._here
                or self._times_trained(item) > self._again
            ):
                continue
            read = partial(rows_of, rollout_id=item.rollout_id, group_id=group.group.id)
            success = self._store.read(read)
            age = self._chain.oldest(self._version, (row.versions for row in success.rows))
            if age > self._max_staleness:
                return group  # the remaining successes are from older groups
            self._here.add(item.rollout_id)
            member = GroupMember(item.rollout_id, item.slot, item.reward, "valid", item.graded)
            joined = replace(group.group, members=(*group.group.members, member))
            credit = (*group.credit, success.credit) if group.credit else ()
            return replace(group, group=joined, rows=(*group.rows, success.rows), credit=credit, borrowed=1)
        return group

    def _times_trained(self, item: Success) -> int:
        """How many times it was trained by steps of the surviving chain."""
        known = [
            version
            for version in item.versions
            if version != self._last_version and self._chain.survives(version)
        ]
        return len(known) + (item.rollout_id in self._last_rollouts)
