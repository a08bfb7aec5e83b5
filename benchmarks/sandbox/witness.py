"""Whom things of the engine belong to: it is followed, so that what it has forgotten, or never had a label,
still has an owner.

The engine tells of each container that it makes; those of one workspace root are looked at at once: their ids
name shims, cgroups and folders, and they say which volumes, mounts and network namespaces are theirs.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from harnessgym.sandboxes.containers import ROOT_LABEL
from harnessgym.sandboxes.engine import address, sdk


class Witness:
    """Follows the engine at `host` from the moment it is entered. `label` is the workspace root's, on all
    that is ours.
    """

    def __init__(self, workspaces: Path, host: str = "") -> None:
        self.host = address(host)
        self.label = f"{ROOT_LABEL}={workspaces}"
        self.client: Any = sdk().APIClient(base_url=self.host, version="auto")
        self.containers: set[str] = set()
        """Ids of all that were ever made."""
        self.volumes: set[str] = set()
        self.mounts: set[str] = set()
        """Mount points: file systems and network namespaces of containers."""
        self._told: Any = None
        """The client that follows."""
        self._following: Any = None
        self._thread = threading.Thread(target=self._follow, name="witness", daemon=True)

    @property
    def socket(self) -> Path:
        """Of the engine."""
        return Path(self.host.removeprefix("unix://"))

    @property
    def pid(self) -> int:
        """The process that serves the engine's socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.socket))
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(credentials[:4], "little", signed=True)

    def __enter__(self) -> Self:
        filters = {"type": "container", "event": ["create", "start"], "label": self.label}
        self._told = sdk().APIClient(base_url=self.host, version="auto", timeout=None)
        self._following = self._told.events(decode=True, filters=filters)
        self._thread.start()
        for each in self.client.containers(all=True, filters={"label": self.label}):
            self._look(each["Id"])
        return self

    def __exit__(self, *exc: object) -> None:
        self._following.close()
        self._thread.join(5.0)
        self._told.close()
        self.client.close()

    def tidy(self) -> None:
        """Removes whatever containers and volumes of the root there still are."""
        for each in self.client.containers(all=True, filters={"label": self.label}):
            self.client.remove_container(each["Id"], v=True, force=True)
        for name in {each["Name"] for each in self.client.volumes()["Volumes"] or []} & self.volumes:
            self.client.remove_volume(name, force=True)

    def _follow(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed, from the other thread
            for event in self._following:
                self._look(event["id"])

    def _look(self, container: str) -> None:
        self.containers.add(container)
        try:
            found: Mapping[str, Any] = self.client.inspect_container(container)
        except sdk().errors.NotFound:
            return
        self.volumes.update(mount["Name"] for mount in found["Mounts"] if mount["Type"] == "volume")
        file_system = (found["GraphDriver"]["Data"] or {}).get("MergedDir")
        namespace = found["NetworkSettings"].get("SandboxKey")
        self.mounts.update(os.path.realpath(path) for path in (file_system, namespace) if path)
