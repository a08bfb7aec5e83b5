"""Edits of texts by byte offsets, which leave the rest of a file unchanged: apply, undo, show as a patch."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harnessgym.errors import TaskError


@dataclass(frozen=True, slots=True, order=True)
class SourceEdit:
    """One replacement."""

    path: str
    start: int
    """Start, as a byte offset in the UTF-8 text."""
    old: str
    """The text to replace."""
    new: str
    """The replacement."""

    @property
    def end(self) -> int:
        """End of the replaced text, as a byte offset."""
        return self.start + len(self.old.encode())


def edited(files: Mapping[str, str], edits: Sequence[SourceEdit]) -> dict[str, str]:
    """The changed texts. Several insertions at one place keep the given order.

    Raises `TaskError` if an edit does not fit its text, or if two overlap.
    """
    # From the end to the start, so that an edit does not move the offsets of those still to come.
    changed: dict[str, bytes] = {}
    later: dict[str, int] = {}
    for edit in reversed(_in_order(edits)):
        data = changed[edit.path] if edit.path in changed else files.get(edit.path, "").encode()
        if data[edit.start : edit.end] != edit.old.encode() or edit.end > later.get(edit.path, len(data)):
            raise TaskError(
                f"{edit.path} does not hold {edit.old!r} at byte {edit.start}, or two edits of it overlap."
            )
        changed[edit.path] = data[: edit.start] + edit.new.encode() + data[edit.end :]
        later[edit.path] = edit.start
    return {path: data.decode() for path, data in changed.items()}


def undone(edits: Sequence[SourceEdit]) -> tuple[SourceEdit, ...]:
    """The edits that turn the changed texts back."""
    inverse_edits = []
    shift = dict.fromkeys((edit.path for edit in edits), 0)
    for edit in _in_order(edits):
        inverse_edits.append(SourceEdit(edit.path, edit.start + shift[edit.path], edit.new, edit.old))
        shift[edit.path] += len(edit.new.encode()) - len(edit.old.encode())
    return tuple(inverse_edits)


def _in_order(edits: Sequence[SourceEdit]) -> list[SourceEdit]:
    return sorted(edits, key=lambda edit: (edit.path, edit.start, edit.end))


def patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A unified diff for `git apply`. Every path must be on both sides."""
    return "".join(
        _file_patch(path, before[path], after[path]) for path in sorted(after) if before[path] != after[path]
    )


def _file_patch(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{path}", f"b/{path}")
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join([f"diff --git a/{path} b/{path}\n", *ended])


def _lines(text: str) -> list[str]:
    """Lines as git counts them: only a newline ends one. `splitlines` also splits at form feeds."""
    return [line for line in text.replace("\n", "\n\0").split("\0") if line]
