"""The Docker engine, as sandboxes use it: one client, calls on threads of their own, its errors as ours."""

import asyncio
import functools
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from harnessgym.errors import SandboxError

P = ParamSpec("P")
T = TypeVar("T")
_TIMEOUT_S = 120
_THREADS = 16
_PAUSE_S = 0.1
"""Before an engine that does not answer is asked again."""
_USUAL = "unix:///var/run/docker.sock"


class EngineError(SandboxError):
    """The engine refused, or does not answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """Of the engine's HTTP answer; 0 when there was none."""


def address(host: str = "") -> str:
    """Where the engine is: `host`, else `DOCKER_HOST`, else the usual socket."""
    return host or os.environ.get("DOCKER_HOST") or _USUAL


def sdk() -> ModuleType:
    """The Docker SDK. Raises SandboxError when it is missing, or something else has its name."""
    try:
        import docker
    except ImportError as error:
        raise SandboxError("The Docker SDK is not installed: pip install 'harnessgym-rl[docker]'.") from error
    if not hasattr(docker, "APIClient"):
        found = next(iter(getattr(docker, "__path__", ["?"])))
        raise SandboxError(
            f"The Docker SDK is hidden by the folder {found}, or not installed: pip install "
            "'harnessgym-rl[docker]', "
            "and do not put that folder's parent before site-packages."
        )
    module: ModuleType = docker
    return module


def connect(host: str = "") -> Any:
    """A client of the engine. Raises SandboxError when none answers."""
    docker = sdk()
    url = address(host)
    try:
        _probe(url)
        return docker.APIClient(base_url=url, version="auto", timeout=_TIMEOUT_S, max_pool_size=_THREADS)
    except (docker.errors.DockerException, OSError) as error:
        raise SandboxError(
            f"No Docker engine answers at {url}: {error}. Start one, or say where it is: DOCKER_HOST=..."
        ) from error


def _probe(url: str) -> None:
    """Connects once, for where nothing listens the SDK leaves a socket open. Raises OSError."""
    if url.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(url.removeprefix("unix://"))


def unavailable(host: str = "") -> str | None:
    """None if there is an engine that sandboxes can use, else why not and what to do."""
    try:
        client = connect(host)
    except SandboxError as error:
        return str(error)
    try:
        info = client.info()
    finally:
        client.close()
    if info.get("OSType") != "linux":
        return f"The Docker engine at {address(host)} runs {info.get('OSType')} containers. Sandboxes need a Linux engine."
    if not any("seccomp" in option for option in info.get("SecurityOptions") or ()):
        return f"The Docker engine at {address(host)} filters no system calls. Start it with its default seccomp profile."
    if not info.get("MemoryLimit") or not info.get("PidsLimit"):
        return f"The Docker engine at {address(host)} cannot limit memory and processes. Enable these cgroup controllers."
    return None


class DockerEngine:
    """One connection of a node. Its methods may be called at the same time."""

    def __init__(self, host: str = "", patience_s: float = 0.0) -> None:
        """`patience_s` is how long an engine may not answer before a call fails: it may be starting again."""
        self.host = address(host)
        self._patience_s = patience_s
        self._client = connect(host)
        self._errors = sdk().errors
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")

    @property
    def client(self) -> Any:
        """The SDK's low-level client, for `call`."""
        return self._client

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function of the client on a thread; again, if its answer was lost on the way. Raises
        EngineError.
        """
        run = functools.partial(self._guarded, function, *args, **kwargs)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            try:
                return await loop.run_in_executor(self._threads, run)
            except EngineError as error:
                if error.status or loop.time() > deadline:
                    raise
            await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        """Closes the connection; calls that run are waited for."""
        self._threads.shutdown()
        self._client.close()

    def _guarded(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        import requests

        try:
            _probe(self.host)
            return function(*args, **kwargs)
        except self._errors.APIError as error:
            raise EngineError(
                f"The Docker engine refused: {error.explanation or error}.", error.status_code or 0
            ) from error
        except (self._errors.DockerException, requests.RequestException, OSError) as error:
            raise EngineError(f"The Docker engine at {self.host} does not answer: {error}.") from error
