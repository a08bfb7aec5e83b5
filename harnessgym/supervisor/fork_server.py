"""A run's services as forks of one process, which has loaded their modules once.

Loading torch and the rest takes an interpreter some four seconds of processor time, which a fork does not
spend: a run starts with less work, and a service that was killed is back sooner. The server's only thread
loads modules, forks, and collects what has ended; it opens no store, no connection and no device.

The supervisor and the server speak JSON over a socket pair that keeps messages apart. The supervisor sends
orders, each with the descriptors that the service inherits. The server answers `{"ready": ...}` once, then
`{"pid": ...}` per order, and reports `{"ended": [pid, status]}` in between.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from harnessgym.heartbeat import VARIABLE, HeartbeatListener
from harnessgym.process import PARENT, die_with_parent, service_environment

_BOOT = "from harnessgym.supervisor.fork_server import main; main()"
_LATER = {
    "engine": ("trainers.engine.server",),
    "node": (
        "anyio._backends._asyncio",
        "harnessgym.store.backends.sqlite",
        "httpcore",
        "sqlalchemy.dialects.sqlite",
    ),
}
"""Modules that a service imports only when it serves. Those of a node serve the others too."""
_TITLE = 400
"""Bytes of the command line that a fork may overwrite, so that `ps` shows what it serves."""
_LOAD_S = 600.0
"""How long the modules may take to load."""
_ANSWER_S = 20.0
"""How long a fork may take. A server that is silent for longer is stopped or stuck, and is ended."""
_STATUS_S = 5.0
"""How long the status of a service that has ended may take to come."""
_MESSAGE_BYTES = 1 << 20


class ForkServerLost(Exception):
    """The server has ended, or does not answer. Its services have ended, or end now, with it."""


class ServiceForkServer:
    """The supervisor's side: starts the server, orders services, learns how they ended."""

    def __init__(self, services: Sequence[str], log: Path, threads: int) -> None:
        """Start to load `services`, which are commands of `harnessgym`. Does not wait for them.

        `threads` is the number of torch and OpenMP threads of each service. The server's own output, which is
        empty unless it fails, is appended to `log`.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        self._channel, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far, log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _BOOT,
                    str(far.fileno()),
                    ",".join(services),
                    str(log),
                    " " * _TITLE,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[far.fileno()],
                env=os.environ | service_environment(threads),
                start_new_session=True,
            )
        self._ready = False
        self._statuses: dict[int, int] = {}

    def start(
        self,
        command: str,
        settings: Path,
        log: Path,
        descriptors: Sequence[int],
        heartbeat: HeartbeatListener,
    ) -> "ForkedProcess":
        """Start a service, as `harnessgym.process.start_service` does.

        Raises `ForkServerLost` if the server does not answer; then its services have been ended.
        """
        inherited = [*descriptors, heartbeat.far.fileno()]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            order = {
                "argv": ["harnessgym", command, "--config", str(settings)],
                "descriptors": inherited,
                "env": {VARIABLE: str(heartbeat.far.fileno())},
            }
            try:
                socket.send_fds(self._channel, [json.dumps(order).encode()], [output.fileno(), *inherited])
            except OSError as error:
                self._lose(error)
        pid: int = self._answer("pid", _ANSWER_S)
        heartbeat.started()
        return ForkedProcess(self, pid)

    def wait_until_ready(self) -> None:
        """Wait until every module is loaded. Raises `ForkServerLost` if that fails."""
        if not self._ready:
            self._answer("ready", _LOAD_S)
            self._ready = True

    def status_of(self, pid: int, timeout_s: float) -> int | None:
        """Exit status of a service, as in `subprocess`; None if the server does not report it in time."""
        deadline = time.monotonic() + timeout_s
        while pid not in self._statuses:
            try:
                message = self._receive(max(0.0, deadline - time.monotonic()))
            except ForkServerLost:
                return None
            if message is None:
                return None
        return self._statuses[pid]

    def close(self) -> None:
        """End the server, and with it every service that still runs."""
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def _answer(self, key: str, timeout_s: float) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            message = self._receive(max(0.0, deadline - time.monotonic()))
            if message is None:
                self._lose(TimeoutError(f"no answer in {timeout_s:g} s"))
            if key in message:
                return message[key]

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message; None if none arrives in time. Records the exit statuses in it."""
        try:
            if not select.select([self._channel], [], [], timeout_s)[0]:
                return None
            data = self._channel.recv(_MESSAGE_BYTES)
        except (OSError, ValueError) as error:  # ValueError: it was closed
            self._lose(error)
        if not data:
            self._lose(EOFError("the server has ended"))
        message: dict[str, Any] = json.loads(data)
        if "ended" in message:
            pid, status = message["ended"]
            self._statuses[pid] = status
        return message

    def _lose(self, error: Exception) -> NoReturn:
        self.close()
        raise ForkServerLost(str(error)) from error


class ForkedProcess:
    """A forked service, as a `harnessgym.process.ServiceProcess`. Its parent is the server, which reports its
    exit status.
    """

    def __init__(self, server: ServiceForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        # A pidfd: it reports the end even while the server is stopped, and a signal cannot reach another
        # process that reuses the pid.
        try:
            self._descriptor: int | None = os.pidfd_open(pid)
        except ProcessLookupError:  # it has ended, and the server has collected it
            self._descriptor = None
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""
        status = self._wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
        return status

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal. Does nothing once the process has ended."""
        if self._descriptor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            if self._descriptor is not None and not select.select([self._descriptor], [], [], timeout)[0]:
                return None
            status = self._server.status_of(self.pid, _STATUS_S)
            # A server that is stopped or gone cannot report the status. It is not known then: the supervisor
            # starts the service again, and one that had done its work ends at once.
            self.returncode = -signal.SIGKILL if status is None else status
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
        return self.returncode


def main() -> None:
    """The server: `python -c ... DESCRIPTOR SERVICES LOG`. In each fork it returns when its service has
    ended.
    """
    channel = socket.socket(fileno=int(sys.argv[1]))
    services = sys.argv[2].split(",")
    die_with_parent(int(os.environ[PARENT]))
    _show_title(["harnessgym", "fork-server", *services, sys.argv[3]])
    _load(services)
    gc.collect()
    gc.freeze()  # no collection in a fork copies the pages of what was loaded
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler makes Python write to the wake-up descriptor
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    channel.send(json.dumps({"ready": True}).encode())
    while True:
        readable = select.select([channel, woken], [], [])[0]
        if woken in readable:
            woken.recv(_MESSAGE_BYTES)
            _report_ended(channel)
        if channel in readable:
            data, descriptors, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, 64)
            if not data:
                return
            order = json.loads(data)
            parent = os.getpid()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for own in (channel, woken, wake):
                    own.close()
                _serve(order, descriptors, parent)
                return
            channel.send(json.dumps({"pid": pid}).encode())
            for descriptor in descriptors:
                os.close(descriptor)


def _load(services: Sequence[str]) -> None:
    """Import the services' modules.

    Ignores failures: the service fails on them too, and its log has the reason.
    """
    from harnessgym.cli import command
    from harnessgym.registry import load

    command()
    for service in services:
        for kind in ("settings", "service"):
            with contextlib.suppress(Exception):
                load(kind, service)
        for module in _LATER.get(service, ()):
            with contextlib.suppress(Exception):
                importlib.import_module(module)


def _report_ended(channel: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            channel.send(json.dumps({"ended": [pid, os.waitstatus_to_exitcode(status)]}).encode())


def _serve(order: Mapping[str, Any], descriptors: Sequence[int], parent: int) -> None:
    """In a fork: take over the descriptors and the environment of the service, and run it."""
    os.setsid()
    _move(descriptors, [1, *order["descriptors"]])
    os.dup2(1, 2)
    os.environ.update(order["env"], **{PARENT: str(parent)})
    sys.argv = order["argv"]
    _show_title(sys.argv)
    from harnessgym.cli import main as run

    run()


def _move(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Move descriptors to the numbers that the service's settings name."""
    # Move all to high numbers first: the number that one needs may be in use by another.
    above = max(numbers) + 1
    aside = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(aside, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _show_title(argv: Sequence[str]) -> None:
    """Make `ps` show a command line, as far as it fits over the one that the server was started with."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, fields 48 and 49 of proc(5)
    if start and end > start:
        title = "\0".join(argv).encode()[: end - start - 1]
        ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)
