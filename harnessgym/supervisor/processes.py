"""What the supervisor needs of the processes of a run, wherever they run: on this machine, or on a
cluster.
"""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from harnessgym.errors import HarnessGymError
from harnessgym.heartbeat import Silence
from harnessgym.run_folder import RunFolder
from harnessgym.supervisor.process_settings import Orders

FATAL_EXIT = 2
"""Exit status of an error that a restart cannot mend; its message is the last line of the log."""
_WINDOW_S = 60.0


class ManagedProcess(Protocol):
    """One process of a run."""

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        ...

    @property
    def where(self) -> str:
        """Where it runs, for people."""
        ...

    @property
    def silence(self) -> Silence:
        """How long nothing was heard of it, when the processes were last tended."""
        ...


class Processes(Protocol):
    """All processes of one run.

    Their names are `proxy`, `engine-N`, `node` or `node-N`, `trainer`, and `trainer-NAME` for further
    policies. Agents of outside engines are called as these are, `vllm-HOST-PORT`.
    """

    folder: RunFolder

    @property
    def by_name(self) -> Mapping[str, ManagedProcess]:
        """Those that are there."""
        ...

    def end_leftovers(self) -> list[str]:
        """End what an earlier supervisor of this run left running. Returns names."""
        ...

    def open(self) -> None:
        """Make what is held for the processes while they come and go: places, listening sockets."""
        ...

    def lacks(self, backend: str) -> str | None:
        """Why nodes cannot use a sandbox backend; None if they can."""
        ...

    def start_all(self, orders: Orders) -> None:
        """Start every process. Raises `HarnessGymError` if one cannot be."""
        ...

    def tend(self) -> list[str]:
        """Do what is to be done from time to time, without waiting for anything. Returns what people
        should be told.
        """
        ...

    def exited(self) -> list[tuple[str, int]]:
        """Processes that have ended, with their exit status, negative for a signal."""
        ...

    def kill(self, name: str) -> None:
        """End a process at once, without waiting until it has ended. It counts as one that has exited."""
        ...

    def restart(self, name: str) -> None:
        """Start a process again. Raises `HarnessGymError` if it has ended too often within a minute."""
        ...

    def forget(self, name: str) -> None:
        """A process has done its work."""
        ...

    def close(self) -> None:
        """End every process, and let go of what was made for them."""
        ...

    def log_path(self, name: str) -> Path:
        """Where a process writes what it has to say."""
        ...

    def last_words(self, name: str) -> str:
        """The end of a process's log."""
        ...


def restarts(processes: Processes) -> int:
    """How often processes that still are there were started again."""
    return sum(process.restarts for process in processes.by_name.values())


@dataclass
class Restarts:
    """How often a process was started again, at most `limit` times within a minute."""

    limit: int
    count: int = 0
    _recent: deque[float] = field(default_factory=deque)

    def add(self, name: str, log: Path) -> None:
        """Count one more. Raises `HarnessGymError`, with the end of the log, if that is too many."""
        now = time.monotonic()
        while self._recent and now - self._recent[0] > _WINDOW_S:
            self._recent.popleft()
        if len(self._recent) >= self.limit:
            raise HarnessGymError(
                f"The {name} process ended {len(self._recent) + 1} times within a minute, so it is not "
                "started again. "
                f"Its log is {log}; the last of it:\n{last_words(log)}"
            )
        self._recent.append(now)
        self.count += 1


def last_words(log: Path, size: int = 1_500) -> str:
    """The end of a process's log: the error it ended with, if it is one of ours, else its last `size`
    bytes.
    """
    try:
        text = log.read_bytes()[-4 * size :].decode(errors="replace").strip()
    except FileNotFoundError:
        return "(it wrote nothing)"
    start = text.rfind("\nharnessgym: ") + 1
    return text[start:] if text.startswith("harnessgym: ", start) else text[-size:] or "(it wrote nothing)"
