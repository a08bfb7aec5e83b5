"""`sinks.json`: the last step of each metrics sink, and how often it failed."""

import contextlib
import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from harnessgym.run_folder import write_json


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The status of one sink."""

    step: int = -1
    """The last step written to it, -1 before the first."""
    failures: int = 0
    """Failures since the run was last started."""


def standings(path: Path) -> dict[str, SinkStatus]:
    """Statuses by name. Empty if the file is missing or malformed."""
    try:
        return {name: SinkStatus(**entry) for name, entry in json.loads(path.read_text()).items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}


class SinkStatuses:
    """Writes the file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._known = path, threading.Lock(), standings(path)

    def of(self, name: str) -> SinkStatus:
        """The status of a sink."""
        return self._known.get(name, SinkStatus())

    def note(self, name: str, standing: SinkStatus) -> None:
        """Record a sink's status. Ignores a file that cannot be written."""
        with self._lock:
            self._known[name] = standing
            with contextlib.suppress(OSError):
                write_json(self._path, {known: asdict(entry) for known, entry in self._known.items()})
