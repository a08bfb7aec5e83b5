"""`sinks.json`: how far each metrics sink has come, and how often it failed."""

import contextlib
import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from harnessgym.run_folder import write_json


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """One sink."""

    step: int = -1
    """The last step it was given, -1 before there was one."""
    failures: int = 0
    """How often it failed since the run was last started."""


def standings(path: Path) -> dict[str, SinkStatus]:
    """All of them, by name; none where the file is missing or is not what we wrote."""
    try:
        return {name: SinkStatus(**entry) for name, entry in json.loads(path.read_text()).items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return {}


class SinkStatuses:
    """The file, for those who write it. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._known = path, threading.Lock(), standings(path)

    def of(self, name: str) -> SinkStatus:
        """How a sink stands."""
        return self._known.get(name, SinkStatus())

    def note(self, name: str, standing: SinkStatus) -> None:
        """Remember how a sink stands. A disk that takes nothing is for others to notice."""
        with self._lock:
            self._known[name] = standing
            with contextlib.suppress(OSError):
                write_json(self._path, {known: asdict(entry) for known, entry in self._known.items()})
