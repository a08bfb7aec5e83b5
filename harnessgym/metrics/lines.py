"""JSON lines files that one process appends to while others follow: `metrics.jsonl`, `observed.jsonl`.

A killed writer may leave a torn line, and write a step again after its restart.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Entry = dict[str, float]
"""Numbers by name. `step` is the training step they belong to."""


@dataclass
class StepLines:
    """The entries of a file, one per step, in order. The last write of a step wins."""

    path: Path
    rewritten: int = 0
    """Counts entries replaced, inserted before others or dropped. A change makes earlier sums over the
    entries invalid."""
    _entries: list[Entry] = field(default_factory=list)
    _steps: list[int] = field(default_factory=list)
    """Steps of the entries."""
    _offset: int = 0

    def read(self) -> Sequence[Entry]:
        """All entries. Reads only what is new and skips torn lines and those without a step.

        The returned sequence grows with later reads.
        """
        for line in self._whole_lines():
            try:
                entry = json.loads(line)
                step = int(entry["step"])
            except (ValueError, KeyError, TypeError, OverflowError):
                continue
            self._add(step, entry)
        return self._entries

    def _add(self, step: int, entry: Entry) -> None:
        if not self._steps or step > self._steps[-1]:
            self._steps.append(step)
            self._entries.append(entry)
            return
        self.rewritten += 1
        place = bisect_left(self._steps, step)
        if self._steps[place] == step:
            self._entries[place] = entry
        else:
            self._steps.insert(place, step)
            self._entries.insert(place, entry)

    def _whole_lines(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self._offset:  # it was replaced
                    self._offset = 0
                    self._entries = []
                    self._steps = []
                    self.rewritten += 1
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return []
        # Stop after the last newline: the writer may still be in the middle of the line behind it.
        whole, newline, _ = new.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return whole.splitlines()


def append(path: Path, entry: Mapping[str, Any]) -> None:
    """Append an entry on its own line, even after a torn line."""
    with path.open("ab+") as file:
        if file.seek(0, 2):
            file.seek(-1, 2)
            torn = file.read() != b"\n"
        else:
            torn = False
        file.write((b"\n" if torn else b"") + json.dumps(entry).encode() + b"\n")
