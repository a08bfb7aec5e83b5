"""A private proxy: a child process that serves one upstream to one command or node."""

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
    """The addresses and keys of a running proxy."""

    url: str
    control_url: str
    control_key: str
    store_url: str
    run_id: str
    log: Path
    socket_dir: Path
    """Folder with the proxy's Unix socket, for sandboxes without a network."""
    outside: str | None = None
    """Kind of the outside model that answers; None if an engine answers."""
    replay: str | None = None
    """The rollout or session that is replayed; None if nothing is replayed."""


class OwnProxy:
    """The proxy's child process while the context of `own_proxy` is open."""

    def __init__(self, address: RunningProxy, children: Children) -> None:
        self.address = address
        self._children = children

    def check(self) -> None:
        """Raises `HarnessGymError` with the end of the log if the proxy has exited."""
        if self._children.exited():
            raise HarnessGymError(
                f"The proxy ended: {self._children.last_words('proxy')} Its log: {self.address.log}."
            )

    def revive(self) -> None:
        """Restart the proxy if it has exited or hangs; connections wait meanwhile.

        Raises `HarnessGymError` if it dies too often within a minute.
        """
        self._children.revive()


def add_run(
    conn: Connection,
    name: str,
    upstream: WrapUpstream,
    config: dict[str, Any] | None = None,
    run_id: str | None = None,
) -> str:
    """Add a run with one worker and policy version 0, and return the run's id.

    Tokens that the worker does not label belong to version 0.
    """
    values = {"upstream": upstream.address, "kind": upstream.kind, "policy": str(upstream.policy)} | (
        config or {}
    )
    run_id = runs.add(conn, name, values, version("harnessgym-rl"), "training", run_id)
    served = PolicyVersion(0, None, "full", upstream.address, 0, "", 0, committed=True, orphaned=False)
    policies.publish(conn, policies.register(conn, run_id, "policy"), served)
    # Every proxy has a replay upstream built in, so only the other kinds need a worker row.
    if upstream.kind != "replay":
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
    """Start a proxy for a run and stop it when the context or this process ends.

    The folder holds its log and settings. `timeouts` limits how long the upstream may be silent.
    """
    key = secrets.token_urlsafe(24)
    children = Children(folder, 1, _RESTARTS)
    # A killed process may have left its proxy running: end that before its socket folder is removed.
    children.end_leftovers()
    # This process opens the sockets and the child inherits them: a restarted proxy keeps the same
    # addresses, and connections queue in the kernel until it accepts again.
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
