"""Child processes of a run: started with inherited sockets, watched, restarted within bounds, ended with the run."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from harnessgym.config import Config
from harnessgym.errors import HarnessGymError
from harnessgym.process import ProcessId, end, identify, interruption_deferred
from harnessgym.run_folder import RunFolder, write_json

FATAL_EXIT = 2
"""Exit status of an error that a restart cannot mend; its message is the last line of the log."""
_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How a process is started, every time it is."""

    name: str
    command: str
    """Command of `harnessgym`, e.g. "proxy"."""
    settings: Config | dict[str, object]
    sockets: tuple[int, ...] = ()
    """Listening sockets it inherits."""


@dataclass
class Child:
    """A process and its past."""

    spec: ChildSpec
    process: subprocess.Popen[bytes]
    restarts: int = 0
    recent: deque[float] = field(default_factory=deque)


class Children:
    """All processes of one run."""

    def __init__(self, folder: RunFolder, threads: int, max_restarts: int) -> None:
        self.folder, self.threads, self.max_restarts = folder, threads, max_restarts
        self.by_name: dict[str, Child] = {}

    def end_leftovers(self) -> list[str]:
        """End what an earlier supervisor of this run left running. Returns names."""
        try:
            recorded = json.loads(self.folder.processes_path.read_text())
        except (FileNotFoundError, ValueError):
            return []
        alive = [(name, ProcessId(*entry)) for name, entry in recorded.items() if ProcessId(*entry).alive()]
        for _, process in alive:
            end(process)
        return [name for name, _ in alive]

    def start(self, spec: ChildSpec) -> None:
        """Start a process."""
        with interruption_deferred():  # a child nobody knows of would be left behind
            self.by_name[spec.name] = Child(spec, self._spawn(spec))
            self._record()

    def exited(self) -> list[tuple[str, int]]:
        """Processes that have ended, with their exit status."""
        return [(name, code) for name, child in self.by_name.items() if (code := child.process.poll()) is not None]

    def restart(self, name: str) -> None:
        """Start a process again. Raises `HarnessGymError` if it has died too often within a minute."""
        child, now = self.by_name[name], time.monotonic()
        while child.recent and now - child.recent[0] > _WINDOW_S:
            child.recent.popleft()
        if len(child.recent) >= self.max_restarts:
            raise HarnessGymError(
                f"The {name} process ended {len(child.recent) + 1} times within a minute, so it is not started again. "
                f"Its log is {self.log_path(name)}; the last of it:\n{self.last_words(name)}"
            )
        child.recent.append(now)
        child.restarts += 1
        with interruption_deferred():
            child.process = self._spawn(child.spec)
            self._record()

    def restarts(self) -> int:
        """How often processes that still run were started again."""
        return sum(child.restarts for child in self.by_name.values())

    def forget(self, name: str) -> None:
        """A process has done its work."""
        del self.by_name[name]
        self._record()

    def end_all(self) -> None:
        """End every process."""
        for child in self.by_name.values():
            if child.process.poll() is None:
                child.process.terminate()
        for child in self.by_name.values():
            try:
                child.process.wait(timeout=3.0)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self.by_name.clear()
        with contextlib.suppress(OSError):  # on a full disk the record stays, and names processes that are dead
            self._record()

    def log_path(self, name: str) -> Path:
        """Where a process writes what it has to say."""
        return self.folder.logs / f"{name}.log"

    def last_words(self, name: str, size: int = 1_500) -> str:
        """The end of a process's log: the error it ended with, if it is one of ours, else its last `size` bytes."""
        try:
            text = self.log_path(name).read_bytes()[-4 * size :].decode(errors="replace").strip()
        except FileNotFoundError:
            return "(it wrote nothing)"
        start = text.rfind("\nharnessgym: ") + 1
        return text[start:] if text.startswith("harnessgym: ", start) else text[-size:] or "(it wrote nothing)"

    def _spawn(self, spec: ChildSpec) -> subprocess.Popen[bytes]:
        settings = spec.settings.model_dump(mode="json") if isinstance(spec.settings, Config) else spec.settings
        path = self.folder.root / "services" / f"{spec.name}.json"
        write_json(path, settings, mode=0o600)
        self.folder.logs.mkdir(parents=True, exist_ok=True)
        threads = str(self.threads)
        extra = {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "HARNESSGYM_PARENT": str(os.getpid()),
            "PYTHONUNBUFFERED": "1",
        }
        log: IO[bytes]
        with self.log_path(spec.name).open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "harnessgym", spec.command, "--config", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=spec.sockets,
                env={**os.environ, **extra},
                start_new_session=True,
            )

    def _record(self) -> None:
        known = {name: identify(child.process.pid) for name, child in self.by_name.items()}
        write_json(self.folder.processes_path, {name: [p.pid, p.started] for name, p in known.items() if p is not None})
