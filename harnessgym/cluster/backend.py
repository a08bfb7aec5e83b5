"""The interface between a run and the cluster that provides its process slots, such as Ray.

The desired number of nodes is a file in the run's folder that people may change during the run.
"""

import json
from concurrent.futures import Future
from typing import Any, Protocol

from harnessgym.errors import ConfigError
from harnessgym.run_config.cluster import Need
from harnessgym.run_folder import RunFolder, write_json


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


def desired_nodes(folder: RunFolder) -> int:
    """The desired number of nodes: the last one set, else the configured one."""
    try:
        return int(json.loads((folder.root / "nodes.json").read_text()))
    except (FileNotFoundError, ValueError):
        return folder.config().cluster.nodes


def set_desired_nodes(folder: RunFolder, nodes: int) -> None:
    """Sets the desired number of nodes. Raises `ConfigError` if it is below 1."""
    if nodes < 1:
        raise ConfigError(
            "A run needs a node: at least one must stay. To end the run, interrupt its supervisor."
        )
    write_json(folder.root / "nodes.json", nodes)
