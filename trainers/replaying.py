"""Which groups could be trained again: those of the last steps, as the store knows them and the trainer
the newest.
"""

from collections import defaultdict
from collections.abc import Sequence

from harnessgym.scheduling.consumption import Replayable
from harnessgym.scheduling.staleness import VersionChain
from harnessgym.store import TraceStore, ledger
from harnessgym.store.ledger import TrainedGroup


def replayable(
    store: TraceStore,
    policy_id: str,
    version: int,
    chain: VersionChain,
    max_staleness: int,
    newest: Sequence[TrainedGroup],
) -> list[Replayable]:
    """Groups that a step from `version` might train again, in order of submission.

    `newest` are those of the newest step, which the store may not know yet. A group that is within η was
    trained first no more than η steps ago: none of its tokens is newer than the version that this step
    started from.
    """
    recent = chain.surviving[-max_staleness:]
    known = store.read(lambda conn: ledger.trained_into(conn, policy_id, recent))
    found = defaultdict[str, dict[int, TrainedGroup]](dict)
    for item in (*known, *newest):
        if item.version in recent:
            found[item.id][item.version] = item
    out = []
    for group_id, by_version in found.items():
        last = by_version[max(by_version)]
        staleness = chain.between(version, last.version) + 1 + last.max_staleness
        out.append(Replayable(group_id, last.ordinal, len(by_version), staleness))
    return sorted(out, key=lambda item: item.ordinal)
