"""The Docker engine for sandboxes: one client, calls on separate threads, its errors as EngineError.

`accounts` gives the harness's user a name in an image that has none; programs that look up their own user
fail without one.
"""

import asyncio
import contextlib
import functools
import io
import os
import re
import socket
import tarfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from harnessgym.errors import SandboxError

P = ParamSpec("P")
T = TypeVar("T")
_TIMEOUT_S = 120
_THREADS = 16
_PAUSE_S = 0.1
"""Pause before a call to an engine that does not answer is repeated."""
_USUAL = "unix:///var/run/docker.sock"


class EngineError(SandboxError):
    """The engine refused a call or does not answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """Status of the engine's HTTP response; 0 if there was none."""


def address(host: str = "") -> str:
    """The engine's URL: `host`, else `DOCKER_HOST`, else the usual socket."""
    return host or os.environ.get("DOCKER_HOST") or _USUAL


def sdk() -> ModuleType:
    """Imports the Docker SDK. Raises SandboxError if it is missing or a folder of its name hides it."""
    try:
        import docker
    except ImportError as error:
        raise SandboxError("The Docker SDK is not installed: pip install 'harnessgym-rl[docker]'.") from error
    if not hasattr(docker, "APIClient"):
        folder = next(iter(getattr(docker, "__path__", ["?"])))
        raise SandboxError(
            f"The Docker SDK is hidden by the folder {folder}, or not installed: pip install "
            "'harnessgym-rl[docker]', and do not put that folder's parent before site-packages."
        )
    module: ModuleType = docker
    return module


def connect(host: str = "") -> Any:
    """Connects to the engine. Raises SandboxError if none answers."""
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
    """Connects once without the SDK, which leaks a socket if nothing listens. Raises OSError."""
    if url.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(url.removeprefix("unix://"))


def unavailable(host: str = "") -> str | None:
    """Returns None if sandboxes can use the engine, else why not and what to do."""
    try:
        client = connect(host)
    except SandboxError as error:
        return str(error)
    try:
        info = client.info()
    finally:
        client.close()
    if info.get("OSType") != "linux":
        return (
            f"The Docker engine at {address(host)} runs {info.get('OSType')} containers. Sandboxes need a "
            "Linux engine."
        )
    if not any("seccomp" in option for option in info.get("SecurityOptions") or ()):
        return (
            f"The Docker engine at {address(host)} filters no system calls. Start it with its default "
            "seccomp profile."
        )
    if not info.get("MemoryLimit") or not info.get("PidsLimit"):
        return (
            f"The Docker engine at {address(host)} cannot limit memory and processes. Enable these cgroup "
            "controllers."
        )
    return None


class DockerEngine:
    """A node's connection to the engine. Its methods may be called concurrently."""

    def __init__(self, host: str = "", max_wait_s: float = 0.0) -> None:
        """A call fails if the engine does not answer for `max_wait_s`, which allows for a restart."""
        self.host = address(host)
        self._max_wait_s = max_wait_s
        self._client = connect(host)
        self._errors = sdk().errors
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")

    @property
    def client(self) -> Any:
        """The SDK's low-level client, for `call`."""
        return self._client

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function of the client on a thread. Repeats it if its answer is lost. Raises EngineError."""
        run = functools.partial(self._guarded, function, *args, **kwargs)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_wait_s
        while True:
            try:
                return await loop.run_in_executor(self._threads, run)
            except EngineError as error:
                # With a status the engine has answered, so only calls without one are repeated. The lost call
                # may have succeeded: callers handle the error of a second one.
                if error.status or loop.time() > deadline:
                    raise
            await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        """Waits for running calls, then closes the connection."""
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


USERS = "/etc/passwd"
GROUP = "/etc/group"
_MOST = 1 << 20
_NUMBER = re.compile("[0-9]{1,10}")


def accounts(
    client: Any, image: str, folder: Path, user: int, home: str, labels: Mapping[str, str]
) -> tuple[tuple[Path, str], ...]:
    """Writes account files that name the user and group id `user` "agent"; returns each with its path inside.

    Writes to `folder` only the files that the image needs, and none if the image already knows the user.
    Blocks; raises the errors of the engine's client.
    """
    made = _made(client, image, f"harnessgym-accounts-{folder.parent.parent.name}-{folder.name}", labels)
    try:
        texts = {path: _read(client, made, path) for path in (USERS, GROUP)}
    finally:
        client.remove_container(made, v=True, force=True)
    # An image without users gets root too: some programs fail if user 0 has no name.
    lines = {USERS: f"agent:x:{user}:{user}:agent:{home}:/bin/sh\n", GROUP: f"agent:x:{user}:\n"}
    if not texts[USERS]:
        lines[USERS] = "root:x:0:0:root:/root:/bin/sh\n" + lines[USERS]
    needed = [path for path in lines if user not in _numbers(texts[path])]
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    files = []
    for path in needed:
        target = folder / Path(path).name
        text = texts[path] + ("" if texts[path].endswith("\n") or not texts[path] else "\n") + lines[path]
        target.write_bytes(text.encode(errors="surrogateescape"))
        target.chmod(0o644)
        files.append((target, path))
    return tuple(files)


def _made(client: Any, image: str, name: str, labels: Mapping[str, str]) -> str:
    """Creates a container to read files from; removes one that an earlier, interrupted call left."""
    with contextlib.suppress(sdk().errors.NotFound):
        client.remove_container(name, v=True, force=True)
    return str(client.create_container(image=image, name=name, entrypoint=["/"], labels=dict(labels))["Id"])


def _numbers(text: str) -> set[int]:
    fields: Iterable[list[str]] = (line.split(":") for line in text.splitlines())
    return {int(each[2]) for each in fields if len(each) > 2 and _NUMBER.fullmatch(each[2])}


def _read(client: Any, made: str, path: str) -> str:
    """Reads a file of a container that never ran; empty unless it is a regular file below 1 MiB."""
    try:
        pieces, _ = client.get_archive(made, path)
    except sdk().errors.NotFound:
        return ""
    data = b"".join(pieces)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        member = archive.next()
        file = (
            archive.extractfile(member)
            if member is not None and member.isreg() and member.size < _MOST
            else None
        )
        return file.read().decode(errors="surrogateescape") if file is not None else ""
