"""Reports silent processes, shows them on the dashboard, and kills those the run started.

A process that is stopped, or whose event loop hangs, has no exit status, so it would never be restarted. Each
process of a run therefore has a heartbeat (`harnessgym.heartbeat`). One that sends none for
`supervisor.silent_s` is killed, which works on a stopped process too, and is restarted like one that died.
Engines that the run did not start are never killed: their weight agents report them, and calls go to other
engines.
"""

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

from harnessgym.run_folder import write_json
from harnessgym.store import TraceStore, workers
from harnessgym.store.workers import EMBEDDED
from harnessgym.supervisor.processes import ManagedProcess, Processes

_SHOWN_SHARE = 0.25
_SHOWN_S = 2.0
"""A process is shown as silent after this share of the limit, but not before this many seconds."""
_OUTSIDE_S = 2.0
"""Seconds between two looks at engines that the run did not start."""


class SilenceWatch:
    """Watches the processes of a run and writes the silent ones to `path` for the dashboard."""

    def __init__(
        self, store: TraceStore, run_id: str, processes: Processes, limit_s: float, path: Path
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.processes = processes
        self.limit_s = limit_s
        self.path = path
        self._killed: dict[str, int] = {}
        """Restarts of each killed process at that time: it is not killed again before it was restarted."""
        self._shown: frozenset[str] = frozenset()
        self._outside: frozenset[str] = frozenset()
        """Engines, not started by the run, that were silent at the last look."""
        self._looked = 0.0

    def look(self) -> list[str]:
        """Kill processes that were silent for too long. Returns messages for people."""
        over = [
            (name, process) for name, process in self.processes.by_name.items() if self._over(name, process)
        ]
        for name, process in over:
            self._killed[name] = process.restarts
            self.processes.kill(name)
        self._record()
        return [*(_killing(name, process) for name, process in over), *self._outside_engines()]

    def clear(self) -> None:
        """Remove the file, so that no process is shown as silent."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _over(self, name: str, process: ManagedProcess) -> bool:
        return process.silence.too_long(self.limit_s) and self._killed.get(name) != process.restarts

    def _record(self) -> None:
        """Write which processes are silent and since when, if that has changed."""
        least_s = max(_SHOWN_S, _SHOWN_SHARE * self.limit_s)
        silent = {
            name: process.silence.seconds
            for name, process in self.processes.by_name.items()
            if process.silence.seconds >= least_s and process.silence.phase == "running"
        }
        if silent.keys() == self._shown:
            return
        now = time.time()
        with contextlib.suppress(OSError):  # on a full disk the dashboard shows what was written last
            write_json(self.path, {name: now - seconds for name, seconds in silent.items()})
        self._shown = frozenset(silent)

    def _outside_engines(self) -> Iterable[str]:
        """Messages about engines the run did not start that went silent or answer again."""
        if time.monotonic() - self._looked < _OUTSIDE_S:
            return
        self._looked = time.monotonic()
        rows = self.store.read(lambda conn: workers.engines_of(conn, self.run_id))
        silent = {row.id: row for row in rows if row.state == "silent" and row.kind != EMBEDDED}
        for row_id in sorted(silent.keys() - self._outside):
            row = silent[row_id]
            yield (
                f"{row.id} ({row.kind} at {row.address}) is silent: it accepts connections and does not "
                "answer. Calls go to other engines until it does. The run did not start it and does not "
                "end it: see its log."
            )
        for row in rows:
            if row.id in self._outside and row.state == "ready":
                yield f"{row.id} ({row.kind} at {row.address}) answers again."
        self._outside = frozenset(silent)


def _killing(name: str, process: ManagedProcess) -> str:
    return (
        f"The {name} process ({process.where}) has been silent for {process.silence.seconds:.0f} s: it was "
        "stopped or hangs. It is killed."
    )
