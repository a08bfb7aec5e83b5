"""Measures the CPU time of each process of a run on this machine."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from harnessgym.process import ProcessId


@dataclass
class Processors:
    """CPU use of the processes that a run's supervisor recorded."""

    path: Path
    """The supervisor's file: name to pid and start time."""
    _last: dict[ProcessId, tuple[float, float]] = field(default_factory=dict)
    """Monotonic time and CPU seconds at the last look."""

    def look(self) -> dict[str, float | None]:
        """Cores that each live process kept busy since the last look; None at its first look."""
        shares: dict[str, float | None] = {}
        seen: dict[ProcessId, tuple[float, float]] = {}
        for name, process in self._recorded().items():
            if (used := _seconds(process)) is None:
                continue
            now = time.monotonic()
            seen[process] = (now, used)
            before = self._last.get(process)
            # Keyed by pid and start time, so a restarted process does not inherit its predecessor's seconds.
            shares[name] = None if before is None else (used - before[1]) / max(now - before[0], 1e-9)
        self._last = seen
        return shares

    def _recorded(self) -> dict[str, ProcessId]:
        try:
            return {name: ProcessId(*entry) for name, entry in json.loads(self.path.read_text()).items()}
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            return {}


def _seconds(process: ProcessId) -> float | None:
    """CPU seconds of a process without its children; None if it has ended."""
    if not process.alive():
        return None
    try:
        times = psutil.Process(process.pid).cpu_times()
    except psutil.Error:
        return None
    return float(times.user + times.system)
