"""One process of a run as the supervisor knows it: what it needs, its place while it has one, and how it
was last seen.
"""

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
"""Exit status of a process whose place was lost: it was killed there."""
_PERIOD_S = 0.2


@dataclass
class ProcessSlot:
    """A process, whether it runs or not."""

    name: str
    role: Role
    need: Need
    again: Restarts
    handle: Handle
    answer: "Future[Any]"
    """What the place was asked last besides how its process is: what it is, or to start."""
    state: State = "placing"
    about: HostInfo | None = None
    told: tuple[str, ...] = ()
    """Where the proxy was when the process was started."""
    pid: int = 0
    code: int | None = None
    starts: int = 0
    """How many processes its place was told to start."""
    ordered: float = 0.0
    """When it was told to start the last one."""
    leaving: bool = False
    silence: Silence = field(default_factory=Silence)
    """How long nothing was heard of the process, as its place said last."""
    heard: float = field(default_factory=time.monotonic)
    """When a question was asked that the place has answered."""
    _question: "Future[Any] | None" = None
    _asked: float = 0.0
    _seen: tuple[int, int] = (0, 0)
    """Start of the process, and bytes of its log, that were seen."""

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
        """Where its place listens."""
        return () if self.about is None else self.about.urls

    def move(self, handle: Handle, answer: "Future[Any]") -> None:
        """Wait for another place."""
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
        """Whether a place that once answered has not done so for too long."""
        return self.state not in ("placing", "ended") and time.monotonic() - self.heard > limit_s

    def see(self, log: Path) -> None:
        """Ask how the process is, if it is time, and take what was answered. Waits for nothing.

        A question that fails is asked again: who never answers is lost, whatever the reason.
        """
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
        with contextlib.suppress(OSError):  # a full disk: the same is asked for again
            if look.log:
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("ab") as file:
                    file.write(look.log)
            self._seen = (look.started, (position if look.started == started else 0) + len(look.log))
        self.silence = look.silence if look.started == self.starts else Silence()
        if self.state == "running" and look.code is not None and look.started == self.starts:
            self.code = look.code
            self.state = "ended"
