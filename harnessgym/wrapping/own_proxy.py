"""A proxy of one's own: a child process that answers from one upstream, beside a command or a node that
needs it.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from harnessgym.engine_timeouts import EngineTimeouts, timeouts_of
from harnessgym.errors import HarnessGymError
from harnessgym.run_folder import RunFolder
from harnessgym.store import TraceStore, policies, runs, workers
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.workers import WorkerRow
from harnessgym.supervisor.children import Children, ChildSpec
from harnessgym.supervisor.sockets import Sockets
from harnessgym.wrapping.upstream import WrapUpstream

_RESTARTS = 5


@dataclass(frozen=True, slots=True)
class RunningProxy:
    """A proxy that runs."""

    url: str
    control_url: str
    control_key: str
    store_url: str
    run_id: str
    log: Path
    socket_dir: Path
    """Folder that holds its socket, for sandboxes without a network."""
    outside: str | None = None
    """Kind of the outside model that answers, if one does."""
    replay: str | None = None
    """What is replayed, if something is."""


class OwnProxy:
    """The child process, as long as the context of `own_proxy` is open."""

    def __init__(self, address: RunningProxy, children: Children) -> None:
        self.address = address
        self._children = children

    def check(self) -> None:
        """Raises `HarnessGymError` with its last words if it has ended."""
        if self._children.exited():
            raise HarnessGymError(
                f"The proxy ended: {self._children.last_words('proxy')} Its log: {self.address.log}."
            )

    def revive(self) -> None:
        """Start it again if it has ended or hangs: connections wait meanwhile. Raises `HarnessGymError` if
        that goes on.
        """
        self._children.revive()


def add_run(
    conn: Connection,
    name: str,
    upstream: WrapUpstream,
    config: dict[str, Any] | None = None,
    run_id: str | None = None,
) -> str:
    """A run with one worker; what that serves, unless it says otherwise, is version 0."""
    values = {"upstream": upstream.address, "kind": upstream.kind, "policy": str(upstream.policy)} | (
        config or {}
    )
    run_id = runs.add(conn, name, values, version("harnessgym-rl"), "training", run_id)
    served = PolicyVersion(0, None, "full", upstream.address, 0, "", 0, committed=True, orphaned=False)
    policies.publish(conn, policies.register(conn, run_id, "policy"), served)
    if upstream.kind != "replay":  # which every proxy has
        workers.upsert(
            conn, WorkerRow(f"{run_id}-upstream", run_id, upstream.kind, upstream.address, 0, "ready")
        )
    return run_id


@contextmanager
def own_proxy(
    store: TraceStore,
    folder: RunFolder,
    run_id: str,
    upstream: WrapUpstream,
    model: str,
    timeouts: EngineTimeouts | None = None,
) -> Iterator[OwnProxy]:
    """Start a proxy for a run; its log and settings are in the folder. It ends with the context, or with this
    process.

    `timeouts` has the limits on the silence of the upstream.
    """
    key = secrets.token_urlsafe(24)
    children = Children(folder, 1, _RESTARTS)
    children.end_leftovers()
    sockets = Sockets(0, folder.root / "sockets.json")
    fds = (sockets.tcp.fileno(), sockets.unix.fileno(), sockets.control.fileno())
    settings = {
        "store": store.url,
        "run_id": run_id,
        "policy": str(upstream.policy),
        "fd": fds[0],
        "uds_fd": fds[1],
        "control_fd": fds[2],
        "control_key": key,
        "served_model_name": model,
        "max_length": upstream.max_length,
        **timeouts_of(timeouts or EngineTimeouts()),
    }
    try:
        children.start(ChildSpec("proxy", "proxy", settings, fds))
        address = RunningProxy(
            sockets.proxy_url,
            sockets.control_url,
            key,
            store.url,
            run_id,
            children.log_path("proxy"),
            sockets.proxy_folder,
            outside=upstream.kind if upstream.kind == "litellm" else None,
            replay=upstream.address if upstream.kind == "replay" else None,
        )
        yield OwnProxy(address, children)
    finally:
        children.end_all()
        sockets.close()
