"""A place: runs one process of a run on its machine and holds the sockets on which that process listens.

The supervisor polls it for the status of the process. A place that is no longer polled kills its process,
because a process that the supervisor cannot see must not continue to train or serve. The process is also
killed when its place ends.
"""

import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harnessgym.heartbeat import HeartbeatListener, Silence
from harnessgym.process import ProcessId, identify, start_service
from harnessgym.registry import load, look_in
from harnessgym.run_folder import RunFolder, write_json

_PREFIX = "harnessgym-place-"
_BACKLOG = 512
_CHUNK = 1 << 18
_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What the supervisor needs to know about a place and its machine."""

    host: str
    """Address of its machine in the cluster's network."""
    name: str
    """Name of its machine."""
    urls: tuple[str, ...]
    """URLs of its sockets."""
    release: str
    """Versions of HarnessGym and Python on its machine."""
    missing: tuple[str, ...]
    """The requested paths that do not exist there."""
    lacks: str | None
    """Why the requested sandbox backend cannot be used there; None if it can."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A process to start."""

    command: str
    """Command of `harnessgym`."""
    settings: dict[str, Any]
    listeners: tuple[str, ...] = ()
    """Settings that get the descriptors of the place's sockets, in order."""
    config: dict[str, Any] | None = None
    """Configuration of the run, for a process that needs nothing else from the run's folder and gets its own
    folder."""
    threads: int = 1


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The status of a process."""

    started: int
    """Number of the process's start, from 1; 0 before the first."""
    code: int | None
    """Exit status; None while it runs or more of its log is to come."""
    log: bytes
    """Its output after the requested position."""
    silence: Silence
    """How long its place has received no heartbeat from it."""


def release() -> str:
    """Versions of HarnessGym and Python on this machine."""
    return f"HarnessGym {version('harnessgym-rl')} on Python {platform.python_version()}"


class ProcessHost:
    """Runs one process on this machine, with a folder that only this user can list and that `end` removes."""

    def __init__(self, host: str, sockets: int, silent_s: float) -> None:
        """Listens on `sockets` free ports of the address `host`."""
        # With SIGCHLD ignored, the kernel discards exit statuses.
        if (
            signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
            and threading.current_thread() is threading.main_thread()
        ):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        own = identify(os.getpid())
        assert own is not None
        _remove_leftovers()
        self.host = host
        self._silent_s = silent_s
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{own.pid}-{own.started}-"))
        # Sandboxes of other users must reach the proxy's socket in it.
        self.folder.chmod(0o711)
        self.log = self.folder / "log"
        self._sockets = [_listen(host) for _ in range(sockets)]
        self._process: subprocess.Popen[bytes] | None = None
        self._heartbeat = HeartbeatListener()
        self._started = 0
        self._asked = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._fence, name="fence", daemon=True).start()

    def about(self, paths: list[str], backend: str | None, code: Sequence[str] = ()) -> HostInfo:
        """Describes this place, and which of `paths` and of `backend`'s needs its machine lacks.

        `code` lists the folders of the run's own modules.
        """
        ports = [listener.getsockname()[1] for listener in self._sockets]
        host = f"[{self.host}]" if ":" in self.host else self.host
        urls = tuple(f"http://{host}:{port}" for port in ports)
        missing = tuple(path for path in paths if not Path(path).exists())
        return HostInfo(
            self.host,
            socket.gethostname(),
            urls,
            release(),
            missing,
            self.lacks(backend, code) if backend else None,
        )

    def lacks(self, backend: str, code: Sequence[str] = ()) -> str | None:
        """Why this machine cannot use a sandbox backend; None if it can."""
        look_in(*code)
        problem: str | None = load("sandbox", backend).unavailable()
        return problem

    def start(self, order: StartRequest) -> int:
        """Kills an earlier process, then starts a new one. Returns its pid."""
        self._kill()
        settings = dict(order.settings)
        for name, listener in zip(order.listeners, self._sockets, strict=True):
            settings[name] = listener.fileno()
        if order.config is not None:
            run = RunFolder(self.folder / "run")
            write_json(run.config_path, order.config, mode=0o600)
            settings["run"] = str(run.root)
        path = self.folder / "settings.json"
        write_json(path, settings, mode=0o600)
        self.log.unlink(missing_ok=True)
        # Other users can open files in the folder whose names they know, so the mode must protect them.
        self.log.touch(mode=0o600)
        descriptors = [listener.fileno() for listener in self._sockets[: len(order.listeners)]]
        self._asked = time.monotonic()
        self._heartbeat.close()
        self._heartbeat = HeartbeatListener()
        self._process = self.run(order, path, descriptors, self._heartbeat)
        self._started += 1
        return self._process.pid

    def run(
        self, order: StartRequest, settings: Path, descriptors: list[int], heartbeat: HeartbeatListener
    ) -> "subprocess.Popen[bytes]":
        """Starts the process itself, with its output in `log`."""
        env = {"TMPDIR": str(self.folder)}
        return start_service(order.command, settings, self.log, order.threads, descriptors, env, heartbeat)

    def look(self, started: int, position: int) -> ProcessStatus:
        """The status of the process and its output after `position` bytes of its log.

        If the process was started again since the start `started`, the output is from the beginning.
        """
        self._asked = time.monotonic()
        # Poll before reading: a process that has ended then writes no more, so its log is complete below.
        code = None if self._process is None else self._process.poll()
        position = position if started == self._started else 0
        log = b""
        if self._process is not None:
            with self.log.open("rb") as file:
                file.seek(position)
                log = file.read(_CHUNK)
        silence = Silence() if self._process is None else self._heartbeat.look()
        return ProcessStatus(self._started, None if len(log) == _CHUNK else code, log, silence)

    def stop(self) -> None:
        """Kills the process, not the place."""
        self._kill()

    def drain(self) -> None:
        """Asks the process to finish its work and end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)

    def end(self) -> None:
        """Ends the process and removes the place's folder."""
        self._over.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._kill()
        self._heartbeat.close()
        for listener in self._sockets:
            listener.close()
        _remove(self.folder)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _fence(self) -> None:
        """Kills the process if the place is no longer polled. Runs in a thread."""
        # After half of `silent_s`, so that the process is dead before the supervisor gives the place up and
        # starts the process elsewhere.
        while not self._over.wait(self._silent_s / 20):
            if time.monotonic() - self._asked > self._silent_s / 2 and self._process is not None:
                self._process.kill()


def _listen(host: str) -> socket.socket:
    listener = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    listener.bind((host, 0))
    listener.listen(_BACKLOG)
    return listener


def _remove_leftovers() -> None:
    """Removes the folders of places that were killed on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*-*"):
        pid, started, _ = folder.name.removeprefix(_PREFIX).split("-", 2)
        with contextlib.suppress(OSError, ValueError):
            # A pid alone may belong to a new process by now; its start time tells.
            if folder.stat().st_uid == os.getuid() and not ProcessId(int(pid), int(started)).alive():
                _remove(folder)


def _remove(folder: Path) -> None:
    """Removes a place's folder, including workspaces in it, whatever their modes."""
    from harnessgym.sandboxes.workspace import Workspace

    # Processes of a killed node may still write for a moment. The next place removes what is left.
    with contextlib.suppress(OSError):
        Workspace(RunFolder(folder / "run").workspaces, None, 0).remove()
    shutil.rmtree(folder, ignore_errors=True)
