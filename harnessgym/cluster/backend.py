"""The interface between a run and the cluster that provides its places, such as Ray."""

from concurrent.futures import Future
from typing import Any, Protocol

from harnessgym.run_config.cluster import Need


class Handle(Protocol):
    """A place on some machine, or a request for one."""

    def call(self, method: str, *arguments: object) -> "Future[Any]":
        """Calls a method of the `ProcessHost`.

        Calls are answered in order once the cluster has room for the place, or never.
        """
        ...

    def kill(self) -> None:
        """Ends the place and its process at once, or withdraws the request."""
        ...


class ClusterBackend(Protocol):
    """A cluster that provides the places of one run."""

    def end_leftovers(self) -> list[str]:
        """Ends the places that an earlier supervisor of this run left. Returns their names."""
        ...

    def claim(self, name: str, need: Need, sockets: int) -> Handle:
        """Requests a place with `sockets` listening sockets.

        Waits for a cluster that is out of reach, like `check(wait=True)`.
        """
        ...

    def check(self, *, wait: bool = False) -> None:
        """Raises `HarnessGymError` if the cluster is out of reach for too long.

        With `wait`, returns only when the cluster can be reached.
        """
        ...

    def room(self) -> str:
        """Describes the cluster's resources and which are free, for messages."""
        ...

    def close(self) -> None:
        """Disconnects from the cluster, which keeps running."""
        ...
