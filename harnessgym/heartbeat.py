"""Heartbeats: each process of a run writes a byte to a socket twice a second, and its supervisor listens.

A socket pair needs no disk, no store and no clock that two machines share. It shows what an exit status
cannot: a process that was stopped, or whose event loop hangs. A process that works long at one thing is not
silent: the bytes come from a thread which runs beside the numerics, or from the event loop of a process that
computes nothing itself.
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
"""Time between two beats."""
SILENT_S = 60.0
"""How long a process may be silent unless settings say otherwise."""
VARIABLE = "HARNESSGYM_HEARTBEAT"
"""Environment variable with the descriptor of a service's end."""
_LONGEST_LOOK_S = 2.0
_SLOW = 10.0
_BEAT, _LAST = b".", b"e"
Phase = Literal["starting", "running", "ending"]
_CHUNK = 4_096


@dataclass(frozen=True, slots=True)
class Silence:
    """How long nothing was heard of a process."""

    seconds: float = 0.0
    phase: Phase = "running"
    """starting: it has never beaten, for its modules are loading. ending: the interpreter shuts down, or
    has."""

    def too_long(self, limit_s: float) -> bool:
        """Whether a process that may be silent for `limit_s` hangs or was stopped.

        One that starts or ends may be silent ten times as long: no thread may run meanwhile.
        """
        return self.seconds >= limit_s * (1.0 if self.phase == "running" else _SLOW)


class HeartbeatListener:
    """The end of whoever starts a process. Give it `far`, call `started`, then `look` again and again.

    Silence is measured in the time that the listener itself was awake: the time between two looks counts for
    at most two seconds. If everything was stopped together, or the listener alone, nobody is taken for
    silent.
    """

    def __init__(self) -> None:
        self._near, self.far = socket.socketpair()
        self._near.setblocking(False)
        self._looked = time.monotonic()
        self.silence = Silence(phase="starting")

    def started(self) -> None:
        """The process has its end, so this one lets go of it."""
        self.far.close()

    def look(self) -> Silence:
        """Take the beats that have come; how long there has been none. It stays 0 once the process has
        ended.
        """
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
        """What has been heard since the last look; None for nothing."""
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
    """Nothing else is needed."""
    return True


class Heartbeat:
    """The end of a process that is listened to. It beats from a thread, until the process ends."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._channel.setblocking(False)
        self._alive: Callable[[], bool] = always
        self._loop: AbstractEventLoop | None = None
        self._asked = threading.Event()
        """Set while the event loop has not answered."""

    def start(self) -> None:
        """Begin to beat."""
        atexit.register(self._send, _LAST)
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def follow(self, loop: "AbstractEventLoop | None" = None, alive: Callable[[], bool] = always) -> None:
        """From now on beat only while `loop` answers, if there is one, and `alive` holds.

        `alive` says whether what else the process needs works. It is called before each beat, in the loop's
        thread if there is a loop.
        """
        self._alive = alive
        self._loop = loop

    def _run(self) -> None:
        while True:
            loop = self._loop
            if loop is None:
                self._beat()
            elif not self._asked.is_set():  # one question at a time: a loop that hangs must not gather them
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
        with contextlib.suppress(OSError):  # nobody has listened for hours, or whoever did is gone
            self._channel.send(beat)


_own: Heartbeat | None = None


def begin() -> None:
    """Begin the heartbeat of this process, if whoever started it listens."""
    global _own  # noqa: PLW0603 - a process has one heart
    if descriptor := os.environ.pop(VARIABLE, None):
        _own = Heartbeat(socket.socket(fileno=int(descriptor)))
        _own.start()


def follow(loop: "AbstractEventLoop | None" = None, alive: Callable[[], bool] = always) -> None:
    """Let the heartbeat of this process, if it has one, depend on more: see `Heartbeat.follow`."""
    if _own is not None:
        _own.follow(loop, alive)
