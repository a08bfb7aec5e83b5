"""Child processes of a run: they inherit sockets, are restarted, within limits, and end with the run."""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harnessgym.heartbeat import SILENT_S, HeartbeatListener, Silence
from harnessgym.process import (
    ProcessId,
    ServiceProcess,
    end,
    identify,
    interruption_deferred,
    start_service,
)
from harnessgym.run_folder import RunFolder, write_json
from harnessgym.supervisor.fork_server import ForkServerLost, ServiceForkServer
from harnessgym.supervisor.processes import Restarts, log_tail


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How to start a process, the first time and every time after."""

    name: str
    command: str
    """Command of `harnessgym`, e.g. "proxy"."""
    settings: dict[str, object]
    sockets: tuple[int, ...] = ()
    """Listening sockets it inherits."""


@dataclass
class Child:
    """A running process, its heartbeat and its restarts."""

    spec: ChildSpec
    process: ServiceProcess
    heartbeat: HeartbeatListener
    again: Restarts

    @property
    def restarts(self) -> int:
        """How often it was restarted."""
        return self.again.count

    @property
    def where(self) -> str:
        """Its pid."""
        return f"pid {self.process.pid}"

    @property
    def silence(self) -> Silence:
        """How long it had sent no heartbeat when `Children.reconcile` last looked."""
        return self.heartbeat.silence


class Children:
    """All processes of one run."""

    def __init__(self, folder: RunFolder, threads: int, max_restarts: int) -> None:
        self.folder = folder
        self.threads = threads
        self.max_restarts = max_restarts
        self.by_name: dict[str, Child] = {}
        self._fork_server: ServiceForkServer | None = None
        self._messages: list[str] = []

    def load(self, services: Sequence[str]) -> None:
        """From now on start services as forks of a process that loads the modules of `services` now."""
        with interruption_deferred():
            self._fork_server = ServiceForkServer(services, self.log_path("fork-server"), self.threads)

    def end_leftovers(self) -> list[str]:
        """End processes that an earlier supervisor of this run left running. Returns their names."""
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
        if self._fork_server is not None:
            with self._cold_if_lost():  # an interruption may end this wait
                self._fork_server.wait_until_ready()
        with interruption_deferred():  # an interruption here would leave an unrecorded child behind
            self.by_name[spec.name] = Child(spec, *self._spawn(spec), Restarts(self.max_restarts))
            self._record()

    def reconcile(self) -> list[str]:
        """Read every heartbeat. Returns messages for people."""
        for child in self.by_name.values():
            child.heartbeat.look()
        messages, self._messages = self._messages, []
        return messages

    def revive(self, silent_s: float = SILENT_S) -> None:
        """Restart processes that have ended. One that was silent for `silent_s` is killed and restarted.

        Raises `HarnessGymError` if one ends again and again.
        """
        self.reconcile()
        for name, child in self.by_name.items():
            if child.silence.too_long(silent_s) and child.process.poll() is None:
                self.kill(name)
        for name, _ in self.exited():
            self.restart(name)

    def kill(self, name: str) -> None:
        """Kill a process, even a stopped one. `exited` then lists it."""
        self.by_name[name].process.kill()

    def exited(self) -> list[tuple[str, int]]:
        """Processes that have ended, with their exit status."""
        return [
            (name, code) for name, child in self.by_name.items() if (code := child.process.poll()) is not None
        ]

    def restart(self, name: str) -> None:
        """Restart a process. Raises `HarnessGymError` if it died too often within a minute."""
        child = self.by_name[name]
        child.again.add(name, self.log_path(name))
        with interruption_deferred():
            child.heartbeat.close()
            child.process, child.heartbeat = self._spawn(child.spec)
            self._record()

    def forget(self, name: str) -> None:
        """Drop a process that has done its work."""
        self.by_name.pop(name).heartbeat.close()
        self._record()

    def end_all(self) -> None:
        """Terminate every process, and kill those that have not ended after 3 s."""
        # All are asked before any is waited for, so that they shut down side by side.
        for child in self.by_name.values():
            if child.process.poll() is None:
                child.process.terminate()
        for child in self.by_name.values():
            try:
                child.process.wait(timeout=3.0)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            child.heartbeat.close()
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None
        self.by_name.clear()
        with contextlib.suppress(
            OSError
        ):  # on a full disk the record stays, and names processes that are dead
            self._record()

    def log_path(self, name: str) -> Path:
        """The log file of a process."""
        return self.folder.logs / f"{name}.log"

    def log_tail(self, name: str) -> str:
        """The last lines of a process's log; see `harnessgym.supervisor.processes.log_tail`."""
        return log_tail(self.log_path(name))

    def _spawn(self, spec: ChildSpec) -> tuple[ServiceProcess, HeartbeatListener]:
        # Settings hold the control key, so only the owner may read the file.
        settings = self.folder.root / "services" / f"{spec.name}.json"
        write_json(settings, spec.settings, mode=0o600)
        heartbeat = HeartbeatListener()
        log = self.log_path(spec.name)
        if self._fork_server is not None:
            with self._cold_if_lost():
                forked = self._fork_server.start(spec.command, settings, log, spec.sockets, heartbeat)
                return forked, heartbeat
        return start_service(
            spec.command, settings, log, self.threads, spec.sockets, heartbeat=heartbeat
        ), heartbeat

    @contextlib.contextmanager
    def _cold_if_lost(self) -> Iterator[None]:
        """If the fork server is lost in the block, start services as new interpreters from now on."""
        try:
            yield
        except ForkServerLost as error:
            self._fork_server = None
            self._messages.append(
                f"The fork server was lost ({error}; its log: {self.log_path('fork-server')}), and with it "
                "every process that it had started. Processes are started as new interpreters from now on."
            )

    def _record(self) -> None:
        # The start time stands beside the pid: a later supervisor must not end a process that reuses the pid.
        known = {name: identify(child.process.pid) for name, child in self.by_name.items()}
        write_json(
            self.folder.processes_path,
            {name: [p.pid, p.started] for name, p in known.items() if p is not None},
        )
