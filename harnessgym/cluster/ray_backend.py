"""Ray as the cluster of a run.

A place is an actor, scheduled by its resources. It ends with the supervisor's connection.
"""

import contextlib
import logging
import secrets
import socket
import time
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayError

from harnessgym.cluster.process_host import ProcessHost
from harnessgym.cluster.ray_head import RayHead
from harnessgym.errors import ConfigError, HarnessGymError
from harnessgym.run_config.cluster import ClusterSection, Need

_LEFTOVERS_S = 30.0
_PAUSE_S = 0.1
_CONNECT_S = 10.0


class RayPlace(ProcessHost):
    """A place inside a Ray actor. It listens on its machine's address in the cluster."""

    def __init__(self, sockets: int, silent_s: float) -> None:
        own = ray.get_runtime_context().get_node_id()
        machines: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        host = next(each["NodeManagerAddress"] for each in machines if each["NodeID"] == own)
        super().__init__(host, sockets, silent_s)


class RayHandle:
    """See `harnessgym.cluster.backend.Handle`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def call(self, method: str, *arguments: object) -> "Future[Any]":
        """See `Handle`. If the place is lost, the answer is a `RayError`."""
        answer: Future[Any] = getattr(self._actor, method).remote(*arguments).future()
        return answer

    def kill(self) -> None:
        """See `Handle`."""
        with contextlib.suppress(RayError, ValueError):
            ray.kill(self._actor)


class RayBackend:
    """See `harnessgym.cluster.backend.ClusterBackend`. One per process; `namespace` is the run's own."""

    def __init__(self, options: ClusterSection, namespace: str) -> None:
        """Connects to the cluster. Raises `ConfigError` if there is none."""
        self._options = options
        self._namespace = namespace
        # The supervisor reports what dies, in one line.
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            _refuse_silence(options.address)
            ray.init(
                address=options.address, namespace=namespace, log_to_driver=False, configure_logging=False
            )
        except (OSError, RayError, RuntimeError) as error:
            raise ConfigError(
                f"cluster.address: no Ray cluster at {options.address!r} ({str(error).splitlines()[0]}). "
                "Start its head with `ray start --head` on one machine and `ray start --address "
                "HEAD:6379` on the others."
            ) from error

        # An address with a scheme is Ray's client on a machine outside the cluster: it cannot reach the head.
        remote = "://" in options.address
        self._head = None if remote else RayHead(ray.get_runtime_context().gcs_address)

    def end_leftovers(self) -> list[str]:
        """See `ClusterBackend`. Raises `HarnessGymError` if a place does not end."""
        leftover_names = self._named()
        deadline = time.monotonic() + _LEFTOVERS_S
        while names := self._named():
            for name in names:
                with contextlib.suppress(RayError, ValueError):
                    ray.kill(ray.get_actor(name, self._namespace))
            if time.monotonic() > deadline:
                raise HarnessGymError(
                    f"Ray still has places of an earlier supervisor of this run: {', '.join(names)}. Is it "
                    "running elsewhere? End it, or wait until Ray has noticed that their machine is dead."
                )
            time.sleep(_PAUSE_S)
        return [name.rpartition("-")[0] for name in leftover_names]

    def claim(self, name: str, need: Need, sockets: int) -> RayHandle:
        """See `ClusterBackend`."""
        # Without its head, Ray would wait itself and then end this process.
        self.check(wait=True)
        # Ray must not restart a place: the supervisor decides, and a restarted actor has other sockets.
        options = {
            "name": f"{name}-{secrets.token_hex(4)}",
            "namespace": self._namespace,
            "num_cpus": need.cpus,
            "num_gpus": need.gpus,
            "memory": need.memory_mb << 20 or None,
            "resources": need.resources or None,
            "scheduling_strategy": "SPREAD" if self._options.spread else "DEFAULT",
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        return RayHandle(ray.remote(RayPlace).options(**options).remote(sockets, self._options.silent_s))

    def check(self, *, wait: bool = False) -> None:
        """See `ClusterBackend`."""
        if self._head is not None and wait:
            self._head.wait()
        elif self._head is not None:
            self._head.check()

    def room(self) -> str:
        """See `ClusterBackend`."""
        there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        names = sorted(name for name in there if not name.startswith(("node:", "object_store")))
        return ", ".join(
            f"{name} {_amount(name, free.get(name, 0.0))} of {_amount(name, there[name])} free"
            for name in names
        )

    def close(self) -> None:
        """See `ClusterBackend`."""
        ray.shutdown()

    def _named(self) -> list[str]:
        return [
            str(actor["name"])
            for actor in ray.util.list_named_actors(all_namespaces=True)
            if self._ours(actor)
        ]

    def _ours(self, actor: Any) -> bool:
        return bool(actor["namespace"] == self._namespace)


def _refuse_silence(address: str) -> None:
    """Raises `OSError` if nothing listens at `HOST:PORT`. Ray itself would retry for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()


def _amount(name: str, value: float) -> str:
    return f"{value / 2**30:.1f} GiB" if name == "memory" else f"{value:g}"
