"""A place: holds one process of a run on whatever machine it is, and the sockets at which that process
listens.

The supervisor asks it again and again how the process is. A place that is asked no more ends its process:
whoever is out of the supervisor's sight must not go on training or serving. The process is killed, too, when
its place ends.
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
    """What a place is."""

    host: str
    """Address of its machine, in the cluster's network."""
    name: str
    """Name of its machine."""
    urls: tuple[str, ...]
    """Of the sockets that it holds."""
    release: str
    """Versions of HarnessGym and of Python there."""
    missing: tuple[str, ...]
    """Those of the asked paths that are not there."""
    lacks: str | None
    """Why the asked sandbox backend cannot be used there."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A process to run."""

    command: str
    """Command of `harnessgym`."""
    settings: dict[str, Any]
    listeners: tuple[str, ...] = ()
    """Settings that are to hold the descriptors of the place's sockets, in their order."""
    config: dict[str, Any] | None = None
    """Configuration of the run, for a process that needs nothing else of the run's folder: it gets a
    folder of its own."""
    threads: int = 1


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """How a process is."""

    started: int
    """Which start of a process this is about, from 1; 0 before the first."""
    code: int | None
    """Exit status; None while it runs, or while there is more of its log to come."""
    log: bytes
    """What it wrote after the asked position."""
    silence: Silence
    """How long its place has heard nothing of it."""


def release() -> str:
    """Versions of HarnessGym and of Python here."""
    return f"HarnessGym {version('harnessgym-rl')} on Python {platform.python_version()}"


class ProcessHost:
    """One process of a run on this machine, with a folder that only this user can list and that ends with
    the place.
    """

    def __init__(self, host: str, sockets: int, silent_s: float) -> None:
        """Listen at `sockets` free ports of the address `host`."""
        if (
            signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
            and threading.current_thread() is threading.main_thread()
        ):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else exit statuses are lost
        own = identify(os.getpid())
        assert own is not None
        _remove_leftovers()
        self.host = host
        self._silent_s = silent_s
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{own.pid}-{own.started}-"))
        self.folder.chmod(0o711)  # sandboxes of other users reach the proxy's socket in it
        self.log = self.folder / "log"
        self._sockets = [_listen(host) for _ in range(sockets)]
        self._process: subprocess.Popen[bytes] | None = None
        self._heartbeat = HeartbeatListener()
        self._started = 0
        self._asked = time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._fence, name="fence", daemon=True).start()

    def about(self, paths: list[str], backend: str | None, code: Sequence[str] = ()) -> HostInfo:
        """What this place is, and what of this its machine lacks. `code` is where the run's own modules
        are.
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
        """Start a process; an earlier one is ended first. Returns its pid."""
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
        self.log.touch(mode=0o600)  # the folder itself is open to those who know what lies in it
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
        """Start the process itself; what it says goes to `log`."""
        env = {"TMPDIR": str(self.folder)}
        return start_service(order.command, settings, self.log, order.threads, descriptors, env, heartbeat)

    def look(self, started: int, position: int) -> ProcessStatus:
        """How the process is, and what it wrote after `position` bytes of its log, if it is still that
        start of it.
        """
        self._asked = time.monotonic()
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
        """Kill the process, not the place."""
        self._kill()

    def drain(self) -> None:
        """Ask the process to finish what it has and end."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)

    def end(self) -> None:
        """End the process and remove what the place made."""
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
        """End the process of a place that is asked no more."""
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
    """Remove the folders of places that were killed on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*-*"):
        pid, started, _ = folder.name.removeprefix(_PREFIX).split("-", 2)
        with contextlib.suppress(OSError, ValueError):
            if folder.stat().st_uid == os.getuid() and not ProcessId(int(pid), int(started)).alive():
                _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a place's folder, with workspaces in it whatever their modes."""
    from harnessgym.sandboxes.workspace import Workspace

    with contextlib.suppress(
        OSError
    ):  # what a killed node had started may write for a moment: the next place removes that
        Workspace(RunFolder(folder / "run").workspaces, None, 0).remove()
    shutil.rmtree(folder, ignore_errors=True)
