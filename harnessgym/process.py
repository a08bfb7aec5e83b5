"""A process and its children: dying with a parent, recognising a process we started, ending it and nothing
else.
"""

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

from harnessgym.heartbeat import VARIABLE, HeartbeatListener

PARENT = "HARNESSGYM_PARENT"
"""Environment variable of a service: the process that started it, with which it ends."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that cannot be mistaken for a later one of the same pid."""

    pid: int
    started: int
    """Clock ticks after boot (field 22 of /proc/PID/stat)."""

    def alive(self) -> bool:
        """Whether exactly this process still runs (a zombie does not)."""
        stat = _stat(self.pid)
        return stat is not None and stat == (self.started, False)

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def identify(pid: int) -> ProcessId | None:
    """The identity of a running process, or None."""
    stat = _stat(pid)
    return None if stat is None else ProcessId(pid, stat[0])


def end(process: ProcessId, grace_s: float = 2.0) -> None:
    """Ask a process to end, then make it."""
    process.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while process.alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.signal(signal.SIGKILL)


def start_service(
    command: str,
    settings: Path,
    log: Path,
    threads: int,
    descriptors: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    heartbeat: HeartbeatListener | None = None,
) -> subprocess.Popen[bytes]:
    """Start `harnessgym COMMAND --config SETTINGS`, which is killed when the thread that calls this ends.

    What it says is appended to `log`. `threads` is its share of torch and OpenMP, `descriptors` are
    inherited. `heartbeat` listens to its heartbeat.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = [*descriptors]
    extra = {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        PARENT: str(os.getpid()),
        "PYTHONUNBUFFERED": "1",
    }
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
    """Be killed when the parent (given by pid, in case it is gone already) ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def hear_interruptions() -> None:
    """Take SIGINT and SIGTERM as an interruption: KeyboardInterrupt in the main thread.

    A shell that starts a command in the background leaves it deaf to SIGINT, and SIGTERM would end it without
    cleaning up.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM in a block that must be gone through. In other threads than the main one,
    does nothing.
    """
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
    """Let SIGINT and SIGTERM interrupt only after a block that must not be torn apart. Main thread only,
    else nothing.
    """
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
    """(start time, is a zombie) of a pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19]), fields[0] == b"Z"
