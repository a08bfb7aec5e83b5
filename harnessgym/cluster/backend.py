"""Where places are had: the seam between what a run needs of a cluster and who runs that cluster."""

from concurrent.futures import Future
from typing import Any, Protocol

from harnessgym.run_config.cluster import Need


class Handle(Protocol):
    """A place on some machine, or the promise of one."""

    def call(self, method: str, *arguments: object) -> "Future[Any]":
        """Call a method of the `Place`. Calls are answered in order, once there is room for the place; or
        never.
        """
        ...

    def kill(self) -> None:
        """End the place and its process at once, or give the promise back."""
        ...


class ClusterBackend(Protocol):
    """A cluster on which one run has its places."""

    def end_leftovers(self) -> list[str]:
        """End the places that an earlier supervisor of this run has left. Returns their names."""
        ...

    def claim(self, name: str, need: Need, sockets: int) -> Handle:
        """Ask for a place that holds `sockets` listening sockets. Waits for a cluster that is out of
        reach, as `check` does.
        """
        ...

    def check(self, *, wait: bool = False) -> None:
        """Raises `HarnessGymError` if the cluster has been out of reach for too long; with `wait` returns
        when it is there.
        """
        ...

    def room(self) -> str:
        """What the cluster has and what of it is free, for people."""
        ...

    def close(self) -> None:
        """Let go of the cluster, which stays."""
        ...
