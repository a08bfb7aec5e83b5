"""Files of JSON lines that one process appends to and others follow while it does: `metrics.jsonl`,
`observed.jsonl`.

A writer that is killed may leave half a line, and write a step again when it is back.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Entry = dict[str, float]
"""Numbers by name; `step` says which training step they are about."""


@dataclass
class StepLines:
    """One entry per step of a file, in order. A step that was written twice counts once, as it was written
    last.
    """

    path: Path
    rewritten: int = 0
    """How often an entry was replaced, put before others or dropped: what was made of the entries by then
    holds no more."""
    _entries: list[Entry] = field(default_factory=list)
    _steps: list[int] = field(default_factory=list)
    """Of the entries."""
    _offset: int = 0

    def read(self) -> Sequence[Entry]:
        """All entries there are, reading only what is new. Torn lines, and those about no step, are passed
        over.

        The sequence grows with the next read.
        """
        for line in self._whole_lines():
            try:
                entry = json.loads(line)
                step = int(entry["step"])
            except (ValueError, KeyError, TypeError):
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
        whole, newline, _ = new.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return whole.splitlines()


def append(path: Path, entry: Mapping[str, Any]) -> None:
    """Add a line, on a line of its own also behind a torn one."""
    with path.open("ab+") as file:
        if file.seek(0, 2):
            file.seek(-1, 2)
            torn = file.read() != b"\n"
        else:
            torn = False
        file.write((b"\n" if torn else b"") + json.dumps(entry).encode() + b"\n")
