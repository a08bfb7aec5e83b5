"""The versions of one policy as a tree: which of them survive, and how many batches lie between two.

Training that goes on from an earlier version orphans the later ones. Their numbers are never used again, so numbers along the
surviving chain have gaps; one version is one consumed batch, so what counts is steps along the chain. Tokens that an orphaned
version sampled count from the version it forked from.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from harnessgym.store.policies import PolicyVersion


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

    def survives(self, version: int) -> bool:
        """Whether what was trained into a version still counts."""
        link = self._links.get(version)
        return link is None or not link.orphaned

    def staleness(self, trained_into: int, sampled: int) -> int:
        """Batches between the version that sampled a token and the one that the step into `trained_into` started from."""
        start = self._links[trained_into].parent if trained_into in self._links else None
        return self._depth(trained_into - 1 if start is None else start) - self._depth(sampled)

    def _depth(self, version: int) -> int:
        link = self._links.get(version)
        return version if link is None else self._links[link.survivor].depth
