"""Processes: starting services that die with their parent, recognising our own, and ending only those."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harnessgym.heartbeat import VARIABLE, HeartbeatListener

PARENT = "HARNESSGYM_PARENT"
"""Environment variable of a service with the pid of its parent. The service ends with it."""
_PR_SET_PDEATHSIG = 1
_RESEND_S = 0.01
"""Seconds until an interruption that Python has dropped is sent again."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identifies a process, even if its pid is reused later."""

    pid: int
    started: int
    """Start time in clock ticks after boot (field 22 of /proc/PID/stat)."""

    def alive(self) -> bool:
        """Whether this very process still runs. A zombie does not."""
        stat = _stat(self.pid)
        return stat is not None and stat == (self.started, False)

    def signal(self, number: int) -> None:
        """Send a signal if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def identify(pid: int) -> ProcessId | None:
    """The identity of a running process, or None."""
    stat = _stat(pid)
    return None if stat is None else ProcessId(pid, stat[0])


def end(process: ProcessId, grace_s: float = 2.0) -> None:
    """Send SIGTERM, and SIGKILL if the process still runs after `grace_s`."""
    process.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while process.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.signal(signal.SIGKILL)


class ServiceProcess(Protocol):
    """A running service: what `subprocess.Popen` and a forked process have in common."""

    pid: int

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Send a signal. Does nothing once the process has ended."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


def service_environment(threads: int) -> dict[str, str]:
    """Variables of a service that the calling process starts. `threads` is for torch and OpenMP."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        PARENT: str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
    }


def start_service(
    command: str,
    settings: Path,
    log: Path,
    threads: int,
    descriptors: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    heartbeat: HeartbeatListener | None = None,
) -> subprocess.Popen[bytes]:
    """Start `harnessgym COMMAND --config SETTINGS`. The kernel kills it when the calling thread ends.

    Its output is appended to `log`. `threads` is its number of torch and OpenMP threads. It inherits
    `descriptors`. `heartbeat` listens to its heartbeat.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = [*descriptors]
    extra = service_environment(threads)
    if heartbeat is not None:
        inherited.append(heartbeat.far.fileno())
        extra[VARIABLE] = str(heartbeat.far.fileno())
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "harnessgym", command, "--config", str(settings)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=inherited,
            env={**os.environ, **(env or {}), **extra},
            start_new_session=True,
        )
    if heartbeat is not None:
        heartbeat.started()
    return process


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, given by pid, ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before prctl took effect; no signal would come any more.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def hear_interruptions() -> None:
    """Make SIGINT and SIGTERM raise `KeyboardInterrupt` in the main thread.

    A shell starts background commands with SIGINT ignored, and SIGTERM would end the process without
    clean-up.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # Python drops what is raised in `__del__` or the callback of a weak reference. An interruption that it
    # drops is sent again once that callback has returned.
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    report = sys.unraisablehook

    def interrupt_again(dropped: "sys.UnraisableHookArgs") -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _RESEND_S)
        else:
            report(dropped)

    sys.unraisablehook = interrupt_again


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM in a block that must complete. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    earlier = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in earlier:
            signal.signal(number, handler)


@contextlib.contextmanager
def interruption_deferred() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the block has ended. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    earlier = [
        (number, signal.signal(number, lambda sent, _: came.append(sent)))
        for number in (signal.SIGINT, signal.SIGTERM)
    ]
    try:
        yield
    finally:
        for number, handler in earlier:
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _stat(pid: int) -> tuple[int, bool] | None:
    """Start time of a pid, and whether it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command's name may contain spaces and parentheses: split after its last one.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19]), fields[0] == b"Z"
