"""The only definition of staleness, used by trainer, account, verification and simulator alike.

The staleness of a token is (the version being trained) - (the version that sampled it); of a batch, the
maximum over its trained tokens. The version being trained is the one the step starts from, and one version is
one consumed batch. Training that goes on from an earlier version orphans the later ones, whose numbers are
never used again; so what is subtracted are places along the surviving chain, and tokens that an orphaned
version sampled count from the version it forked from.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harnessgym.store.policies import PolicyVersion
from harnessgym.tokens import IdArray


@dataclass(frozen=True, slots=True)
class _Link:
    """Where a version stands."""

    parent: int | None
    orphaned: bool
    survivor: int
    """Itself, or if orphaned the version that the orphaned part forked from."""
    depth: int
    """Batches behind it; the number itself for a version without a parent."""


class VersionChain:
    """Answers questions about a policy's recorded versions."""

    def __init__(self, versions: Iterable[PolicyVersion]) -> None:
        self._links: dict[int, _Link] = {}
        for item in sorted(versions, key=lambda item: item.version):
            parent = None if item.parent_version is None else self._links.get(item.parent_version)
            depth = item.version if parent is None else parent.depth + 1
            survivor = parent.survivor if item.orphaned and parent is not None else item.version
            self._links[item.version] = _Link(item.parent_version, item.orphaned, survivor, depth)

    def __contains__(self, version: int) -> bool:
        return version in self._links

    @property
    def surviving(self) -> list[int]:
        """Recorded versions that are not orphaned, in order."""
        return [version for version, link in self._links.items() if not link.orphaned]

    def survives(self, version: int) -> bool:
        """Whether what was trained into a version still counts."""
        link = self._links.get(version)
        return link is None or not link.orphaned

    def staleness(self, trained_into: int, sampled: int) -> int:
        """Batches between the version that sampled a token and the one that the step into `trained_into`
        started from.
        """
        start = self._links[trained_into].parent if trained_into in self._links else None
        return self.depth(trained_into - 1 if start is None else start) - self.depth(sampled)

    def between(self, trained: int, sampled: int) -> int:
        """Staleness of a token of version `sampled` in a step that starts from version `trained`."""
        return self.depth(trained) - self.depth(sampled)

    def oldest(self, trained: int, versions: Iterable[IdArray]) -> int:
        """Largest staleness over arrays of sampling versions, -1 marking tokens not sampled; 0 if none
        was.
        """
        found = {int(version) for array in versions for version in np.unique(array) if version >= 0}
        return max((self.between(trained, version) for version in found), default=0)

    def depth(self, version: int) -> int:
        """Batches behind a version that still count; the number itself for one that is not recorded."""
        link = self._links.get(version)
        return version if link is None else self._links[link.survivor].depth
