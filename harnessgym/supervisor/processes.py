"""The interface between the supervisor and a run's processes, on this machine or on a cluster."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harnessgym.errors import HarnessGymError
from harnessgym.heartbeat import Silence
from harnessgym.run_folder import RunFolder
from harnessgym.supervisor.process_settings import LaunchPlan

FATAL_EXIT = 2
"""Exit status of an error that a restart cannot fix. Its message is the last line of the log."""
_WINDOW_S = 60.0


class ManagedProcess(Protocol):
    """One process of a run."""

    @property
    def restarts(self) -> int:
        """How often it was restarted."""
        ...

    @property
    def where(self) -> str:
        """Where it runs, for messages."""
        ...

    @property
    def silence(self) -> Silence:
        """How long it had sent no heartbeat when `Processes.reconcile` last ran."""
        ...


class Processes(Protocol):
    """All processes of one run.

    Names are `proxy`, `engine-N`, `node` or `node-N`, `trainer`, and `trainer-NAME` for further policies. The
    weight agent of an outside engine has the engine's name, `vllm-HOST-PORT`.
    """

    folder: RunFolder

    @property
    def by_name(self) -> Mapping[str, ManagedProcess]:
        """The present processes."""
        ...

    def end_leftovers(self) -> list[str]:
        """End processes that an earlier supervisor of this run left running. Returns their names."""
        ...

    def open(self) -> None:
        """Make what outlives single processes: process slots, listening sockets."""
        ...

    def lacks(self, backend: str) -> str | None:
        """Why nodes cannot use a sandbox backend; None if they can."""
        ...

    def start_all(self, launch_plan: LaunchPlan) -> None:
        """Start every process. Raises `HarnessGymError` if one cannot be started."""
        ...

    def reconcile(self) -> list[str]:
        """Do periodic work without waiting for anything. Returns messages for people."""
        ...

    def exited(self) -> list[tuple[str, int]]:
        """Processes that have ended with their exit status, which is negative for a signal."""
        ...

    def kill(self, name: str) -> None:
        """Kill a process without waiting for its end. `exited` then lists it."""
        ...

    def restart(self, name: str) -> None:
        """Restart a process. Raises `HarnessGymError` if it ended too often within a minute."""
        ...

    def forget(self, name: str) -> None:
        """Drop a process that has done its work."""
        ...

    def close(self) -> None:
        """End every process and release what `open` made."""
        ...

    def log_path(self, name: str) -> Path:
        """The log file of a process."""
        ...

    def log_tail(self, name: str) -> str:
        """The last lines of a process's log."""
        ...


def restarts(processes: Processes) -> int:
    """Restarts of the present processes, summed."""
    return sum(process.restarts for process in processes.by_name.values())


@dataclass
class Restarts:
    """Counts a process's restarts and allows at most `limit` within a minute."""

    limit: int
    count: int = 0
    _recent: deque[float] = field(default_factory=deque)

    def add(self, name: str, log: Path) -> None:
        """Count a restart. Raises `HarnessGymError` with the end of the log if there were too many."""
        now = time.monotonic()
        while self._recent and now - self._recent[0] > _WINDOW_S:
            self._recent.popleft()
        if len(self._recent) >= self.limit:
            raise HarnessGymError(
                f"The {name} process ended {len(self._recent) + 1} times within a minute, so it is not "
                f"started again. Its log is {log}; the last of it:\n"
                f"{log_tail(log)}"
            )
        self._recent.append(now)
        self.count += 1


def log_tail(log: Path, size: int = 1_500) -> str:
    """The end of a process's log: its final error if that is one of ours, else the last `size` bytes."""
    try:
        text = log.read_bytes()[-4 * size :].decode(errors="replace").strip()
    except FileNotFoundError:
        return "(it wrote nothing)"
    start = text.rfind("\nharnessgym: ") + 1
    return text[start:] if text.startswith("harnessgym: ", start) else text[-size:] or "(it wrote nothing)"
