"""Edits of texts by byte offsets, which keep everything else of a file as it is: apply, undo, and show as
a patch.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harnessgym.errors import TaskError


@dataclass(frozen=True, slots=True, order=True)
class SourceEdit:
    """One replacement."""

    path: str
    start: int
    """Byte of the UTF-8 text at which it begins."""
    old: str
    """What is there."""
    new: str
    """What comes there."""

    @property
    def end(self) -> int:
        """Byte after what is replaced."""
        return self.start + len(self.old.encode())


def edited(files: Mapping[str, str], edits: Sequence[SourceEdit]) -> dict[str, str]:
    """The texts that change, changed; of several insertions at one place, the first given stands first.

    Raises `TaskError` when an edit does not fit its text, or two overlap.
    """
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
    """The edits that make of the changed texts what they were."""
    found = []
    shift = dict.fromkeys((edit.path for edit in edits), 0)
    for edit in _in_order(edits):
        found.append(SourceEdit(edit.path, edit.start + shift[edit.path], edit.new, edit.old))
        shift[edit.path] += len(edit.new.encode()) - len(edit.old.encode())
    return tuple(found)


def _in_order(edits: Sequence[SourceEdit]) -> list[SourceEdit]:
    return sorted(edits, key=lambda edit: (edit.path, edit.start, edit.end))


def patch(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A unified diff that `git apply` takes, of texts that are on both sides."""
    return "".join(
        _file_patch(path, before[path], after[path]) for path in sorted(after) if before[path] != after[path]
    )


def _file_patch(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{path}", f"b/{path}")
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join([f"diff --git a/{path} b/{path}\n", *ended])


def _lines(text: str) -> list[str]:
    """As git counts them: a form feed ends none."""
    return [line for line in text.replace("\n", "\n\0").split("\0") if line]
