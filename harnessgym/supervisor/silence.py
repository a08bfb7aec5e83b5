"""Silent processes: named, shown on the dashboard, and replaced where they are the run's own.

A process that was stopped, or whose event loop hangs, has no exit status, so nobody would start it again.
Each process of a run has a heartbeat (`harnessgym.heartbeat`). One that has sent none for
`supervisor.silent_s` is killed, which ends a stopped process too, and counts as one that died. Engines that
the run did not start are never killed: their weight agents say that they do not answer, and calls go to
others.
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
"""A process is shown as silent after this part of the limit, and not before so many seconds."""
_OUTSIDE_S = 2.0
"""Time between two looks at engines that the run did not start."""


class SilenceWatch:
    """Looks at the processes of a run, and writes to `path` which are silent now, for the dashboard."""

    def __init__(
        self, store: TraceStore, run_id: str, processes: Processes, limit_s: float, path: Path
    ) -> None:
        self.store = store
        self.run_id = run_id
        self.processes = processes
        self.limit_s = limit_s
        self.path = path
        self._killed: dict[str, int] = {}
        """Name to the restarts that it had: it is not killed again before it has been started again."""
        self._shown: frozenset[str] = frozenset()
        self._outside: frozenset[str] = frozenset()
        """Engines that the run did not start and that were silent at the last look."""
        self._looked = 0.0

    def look(self) -> list[str]:
        """Kill what has been silent for too long. Returns what people should be told."""
        over = [
            (name, process) for name, process in self.processes.by_name.items() if self._over(name, process)
        ]
        for name, process in over:
            self._killed[name] = process.restarts
            self.processes.kill(name)
        self._record()
        return [*(_killing(name, process) for name, process in over), *self._outside_engines()]

    def clear(self) -> None:
        """Nobody is shown as silent any more."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _over(self, name: str, process: ManagedProcess) -> bool:
        return process.silence.too_long(self.limit_s) and self._killed.get(name) != process.restarts

    def _record(self) -> None:
        """Write down who is silent and since when, if that has changed."""
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
        """Of engines that the run did not start: which do not answer any more, and which do again."""
        if time.monotonic() - self._looked < _OUTSIDE_S:
            return
        self._looked = time.monotonic()
        rows = self.store.read(lambda conn: workers.engines_of(conn, self.run_id))
        silent = {row.id: row for row in rows if row.state == "silent" and row.kind != EMBEDDED}
        for row_id in sorted(silent.keys() - self._outside):
            row = silent[row_id]
            yield (
                f"{row.id} ({row.kind} at {row.address}) is silent: it accepts connections and does not "
                "answer. Calls go to "
                "other engines until it does. The run did not start it and does not end it: see its log."
            )
        for row in rows:
            if row.id in self._outside and row.state == "ready":
                yield f"{row.id} ({row.kind} at {row.address}) answers again."
        self._outside = frozenset(silent)


def _killing(name: str, process: ManagedProcess) -> str:
    return (
        f"The {name} process ({process.where}) has been silent for {process.silence.seconds:.0f} s: it was "
        "stopped or "
        "hangs. It is killed."
    )
