"""What is said about tasks that are used all the same: collected while each is read, and each sentence
given once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

_SHOWN = 3
"""Tasks that a note names."""


@dataclass(slots=True)
class Notes:
    """Of one task."""

    said: list[str] = field(default_factory=list)

    def say(self, note: str) -> None:
        """Each once."""
        if note not in self.said:
            self.said.append(note)


def joined(said: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Pairs of a task's name and a note, as one sentence for all tasks with the same note."""
    by_note: dict[str, list[str]] = {}
    for name, note in said:
        by_note.setdefault(note, []).append(name)
    return tuple(f"{_listed(names)}: {note}" for note, names in by_note.items())


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
