"""The only definition of staleness. Trainer, token accounting, verification and simulator use it.

The staleness of a token is (the version being trained) - (the version that sampled it); the staleness of a
batch is the maximum over its trained tokens. The version being trained is the one the step starts from, and
one version is one consumed batch. Training that continues from an earlier version orphans the later ones,
whose numbers are never used again. Staleness therefore subtracts positions along the surviving chain, and
tokens sampled by an orphaned version count from the version it forked from.

The bound (η, `trainer.max_staleness`) is enforced elsewhere, in two places, and checked afterwards in a
third:

- `harnessgym.scheduling.admission`: a group is submitted only if it will be consumed in time. The node's
  planner, `harnessgym.rollout.plan`, asks it.
- `harnessgym.scheduling.consumption`: a batch takes no group that is too stale. `trainers.batch_collector`
  asks it, and gives up the groups that it drops.
- `harnessgym.traces.verification.ledger`: `harnessgym traces verify` recomputes the staleness of every
  trained token from the store.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harnessgym.store.policies import PolicyVersion
from harnessgym.tokens import IdArray


@dataclass(frozen=True, slots=True)
class _Link:
    """A version's place in the chain."""

    parent: int | None
    orphaned: bool
    survivor: int
    """The version itself; for an orphaned one, the version where the orphaned part forked off."""
    depth: int
    """Number of batches that led to it; the version number itself if it has no parent."""


class VersionChain:
    """The chain of a policy's recorded versions."""

    def __init__(self, versions: Iterable[PolicyVersion]) -> None:
        self._links: dict[int, _Link] = {}
        # A parent has a lower number than its children, so its link exists when they are added.
        for item in sorted(versions, key=lambda item: item.version):
            parent = None if item.parent_version is None else self._links.get(item.parent_version)
            depth = item.version if parent is None else parent.depth + 1
            survivor = parent.survivor if item.orphaned and parent is not None else item.version
            self._links[item.version] = _Link(item.parent_version, item.orphaned, survivor, depth)

    def __contains__(self, version: int) -> bool:
        return version in self._links

    @property
    def surviving(self) -> list[int]:
        """Recorded versions in order, without orphaned ones."""
        return [version for version, link in self._links.items() if not link.orphaned]

    def survives(self, version: int) -> bool:
        """Whether a version is not orphaned, so that what was trained into it counts."""
        link = self._links.get(version)
        return link is None or not link.orphaned

    def staleness(self, trained_into: int, sampled: int) -> int:
        """Batches from the version that sampled a token to the start of the step into `trained_into`."""
        start = self._links[trained_into].parent if trained_into in self._links else None
        return self.depth(trained_into - 1 if start is None else start) - self.depth(sampled)

    def between(self, trained: int, sampled: int) -> int:
        """Staleness of a token of version `sampled` in a step that starts from version `trained`."""
        return self.depth(trained) - self.depth(sampled)

    def oldest(self, trained: int, versions: Iterable[IdArray]) -> int:
        """Largest staleness over arrays of sampling versions, with -1 for unsampled tokens; 0 if none is."""
        unique_versions = {int(version) for array in versions for version in np.unique(array) if version >= 0}
        return max((self.between(trained, version) for version in unique_versions), default=0)

    def depth(self, version: int) -> int:
        """Number of surviving batches that led to a version; the number itself if it is not recorded."""
        link = self._links.get(version)
        return version if link is None else self._links[link.survivor].depth
