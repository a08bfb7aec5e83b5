"""Heartbeats: each process of a run writes a byte to a socket twice a second, and its supervisor listens.

A socket pair needs no disk, no store and no shared clock. It shows what an exit status cannot: a process that
is stopped, or whose event loop hangs. A process in a long computation is not silent: its bytes come from a
thread beside the numerics. Processes that compute nothing beat from their event loop.
"""

import atexit
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

BEAT_S = 0.5
"""Seconds between two beats."""
SILENT_S = 60.0
"""Default limit on the silence of a process, in seconds."""
VARIABLE = "HARNESSGYM_HEARTBEAT"
"""Environment variable with the file descriptor of the service's end."""
_LONGEST_LOOK_S = 2.0
_SLOW_S = 600.0
"""How long a process may be silent that starts or ends."""
_BEAT, _LAST = b".", b"e"
Phase = Literal["starting", "running", "ending"]
_CHUNK = 4_096


@dataclass(frozen=True, slots=True)
class Silence:
    """How long a process has sent no heartbeat."""

    seconds: float = 0.0
    phase: Phase = "running"
    """starting: it has sent no beat yet, because its modules are loading. ending: the interpreter is shutting
    down or has ended."""

    def too_long(self, limit_s: float) -> bool:
        """Whether a process that may be silent for `limit_s` hangs or is stopped.

        While it starts or ends, its threads may be unable to run, so it may be silent for ten minutes.
        """
        return self.seconds >= (limit_s if self.phase == "running" else max(limit_s, _SLOW_S))


class HeartbeatListener:
    """The supervisor's end. Pass `far` to the process, call `started`, then call `look` repeatedly.

    Silence counts only while the listener itself was awake: the time between two looks counts as at most two
    seconds. So if everything was stopped together, or only the listener, no process is taken for silent.
    """

    def __init__(self) -> None:
        self._near, self.far = socket.socketpair()
        self._near.setblocking(False)
        self._looked = time.monotonic()
        self.silence = Silence(phase="starting")

    def started(self) -> None:
        """Close this process's copy of the far end, once the child has inherited it."""
        self.far.close()

    def look(self) -> Silence:
        """Read the beats that have come and return the present silence; it stays 0 once the process ended."""
        now = time.monotonic()
        waited_s = min(now - self._looked, _LONGEST_LOOK_S)
        self._looked = now
        phase = self._heard()
        if phase is not None:
            self.silence = Silence(phase=phase)
        else:
            self.silence = replace(self.silence, seconds=self.silence.seconds + waited_s)
        return self.silence

    def close(self) -> None:
        """Stop listening."""
        self.far.close()
        self._near.close()

    def _heard(self) -> Phase | None:
        """The phase by the beats since the last look; None if there were none."""
        phase: Phase | None = None
        try:
            while beats := self._near.recv(_CHUNK):
                phase = "ending" if beats.endswith(_LAST) else "running"
        except BlockingIOError:
            return phase
        except OSError:
            pass
        return "ending"  # the process has ended: its exit status says more


def always() -> bool:
    """True: the default condition of a heartbeat."""
    return True


class Heartbeat:
    """The process's own end. It beats from a thread until the process ends."""

    def __init__(self, channel: socket.socket) -> None:
        # Non-blocking: a full socket buffer must not stop the process.
        self._channel = channel
        self._channel.setblocking(False)
        self._alive: Callable[[], bool] = always
        self._loop: AbstractEventLoop | None = None
        self._asked = threading.Event()
        """Set while a callback on the event loop has not run yet."""

    def start(self) -> None:
        """Start to beat."""
        # Shutting down an interpreter can take long and stops the thread: the last byte says that it began.
        atexit.register(self._send, _LAST)
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def follow(self, loop: "AbstractEventLoop | None" = None, alive: Callable[[], bool] = always) -> None:
        """From now on beat only while `loop`, if given, answers and `alive` returns True.

        `alive` tells whether everything else that the process needs works. It is called before each beat, in
        the loop's thread if there is a loop.
        """
        self._alive = alive
        self._loop = loop

    def _run(self) -> None:
        while True:
            loop = self._loop
            if loop is None:
                self._beat()
            elif not self._asked.is_set():  # one callback at a time: a loop that hangs must not collect them
                self._asked.set()
                try:
                    loop.call_soon_threadsafe(self._answer)
                except RuntimeError:  # the loop is closed: the process ends
                    return
            time.sleep(BEAT_S)

    def _answer(self) -> None:
        self._asked.clear()
        self._beat()

    def _beat(self) -> None:
        if self._alive():
            self._send(_BEAT)

    def _send(self, beat: bytes) -> None:
        with contextlib.suppress(OSError):  # the socket buffer is full, or the listener is gone
            self._channel.send(beat)


_own: Heartbeat | None = None


def begin() -> None:
    """Start the heartbeat of this process if its parent listens."""
    global _own  # noqa: PLW0603 - one heartbeat per process
    if descriptor := os.environ.pop(VARIABLE, None):
        _own = Heartbeat(socket.socket(fileno=int(descriptor)))
        _own.start()


def follow(loop: "AbstractEventLoop | None" = None, alive: Callable[[], bool] = always) -> None:
    """Add conditions to the heartbeat of this process, if it has one; see `Heartbeat.follow`."""
    if _own is not None:
        _own.follow(loop, alive)
