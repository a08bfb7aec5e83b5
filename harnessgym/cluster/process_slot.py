"""One process of a run as the supervisor knows it: its needs, its place if it has one, its last status."""

import contextlib
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harnessgym.cluster.backend import Handle
from harnessgym.cluster.process_host import HostInfo, ProcessStatus
from harnessgym.heartbeat import Silence
from harnessgym.run_config.cluster import Need
from harnessgym.supervisor.processes import Restarts

Role = Literal["proxy", "engine", "agent", "node", "trainer"]
State = Literal["placing", "placed", "starting", "running", "ended"]
KILLED = -9
"""Exit status of a process whose place was lost; the place kills it."""
_PERIOD_S = 0.2


@dataclass
class ProcessSlot:
    """A process of the run, running or not."""

    name: str
    role: Role
    need: Need
    again: Restarts
    handle: Handle
    answer: "Future[Any]"
    """Answer to the last call of `about` or `start`."""
    state: State = "placing"
    about: HostInfo | None = None
    told: tuple[str, ...] = ()
    """The proxy's URLs when the process was started."""
    pid: int = 0
    code: int | None = None
    starts: int = 0
    """Number of processes that its place was asked to start."""
    ordered: float = 0.0
    """When the last start was requested."""
    leaving: bool = False
    silence: Silence = field(default_factory=Silence)
    """Time without a heartbeat of the process, as last reported by its place."""
    heard: float = field(default_factory=time.monotonic)
    """When the last answered question was asked."""
    _question: "Future[Any] | None" = None
    _asked: float = 0.0
    _seen: tuple[int, int] = (0, 0)
    """Number of the start, and bytes of its log, that were received."""

    @property
    def restarts(self) -> int:
        """See `harnessgym.supervisor.processes.ManagedProcess`."""
        return self.again.count

    @property
    def where(self) -> str:
        """See `harnessgym.supervisor.processes.ManagedProcess`."""
        if self.about is None:
            return "waits for a machine"
        return (
            f"pid {self.pid} on {self.about.name} ({self.about.host})"
            if self.pid
            else f"{self.state} on {self.about.name}"
        )

    @property
    def urls(self) -> tuple[str, ...]:
        """The URLs on which its place listens."""
        return () if self.about is None else self.about.urls

    def move(self, handle: Handle, answer: "Future[Any]") -> None:
        """Resets the slot to wait for another place."""
        self.handle = handle
        self.answer = answer
        self.state = "placing"
        self.about = None
        self.pid = 0
        self.starts = 0
        self.code = None
        self._question = None
        self._seen = (0, 0)
        self.silence = Silence()

    def lost(self, limit_s: float) -> bool:
        """Whether a place that has answered before is silent for more than `limit_s`."""
        return self.state not in ("placing", "ended") and time.monotonic() - self.heard > limit_s

    def see(self, log: Path) -> None:
        """Handles the answer to the last status question and asks the next one if it is time. Never waits.

        A failed question is asked again. A place that never answers counts as lost, whatever the error.
        """
        # `heard` is the time of the question: an answer may have been on its way for long, and only says that
        # the place was alive after the question was asked.
        now = time.monotonic()
        if self._question is not None and self._question.done():
            question = self._question
            self._question = None
            if question.exception() is None:
                self.heard = self._asked
                self._take(question.result(), log)
        if self._question is None and now - self._asked > _PERIOD_S:
            self._asked = now
            self._question = self.handle.call("look", *self._seen)

    def _take(self, look: ProcessStatus, log: Path) -> None:
        started, position = self._seen
        # If the disk is full, `_seen` stays as it is and the same part of the log is requested again.
        with contextlib.suppress(OSError):
            if look.log:
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("ab") as file:
                    file.write(look.log)
            self._seen = (look.started, (position if look.started == started else 0) + len(look.log))
        self.silence = look.silence if look.started == self.starts else Silence()
        if self.state == "running" and look.code is not None and look.started == self.starts:
            self.code = look.code
            self.state = "ended"
