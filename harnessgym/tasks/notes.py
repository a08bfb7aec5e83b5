"""Notes about usable tasks: collected while a task is read, then joined so that each text appears once."""

from collections.abc import Iterable
from dataclasses import dataclass, field

_SHOWN = 3
"""Most tasks that a note names."""


@dataclass(slots=True)
class Notes:
    """The notes of one task."""

    said: list[str] = field(default_factory=list)

    def say(self, note: str) -> None:
        """Adds a note, unless it is there already."""
        if note not in self.said:
            self.said.append(note)


def joined(notes: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Joins pairs of a task's name and a note into one sentence for all tasks with the same note."""
    by_note: dict[str, list[str]] = {}
    for name, note in notes:
        by_note.setdefault(note, []).append(name)
    return tuple(f"{_listed(names)}: {note}" for note, names in by_note.items())


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
