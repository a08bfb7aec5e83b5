"""How a workspace differs from what it was: looked at from outside, without running anything in it.

A look takes one `stat` for each file, and only what changed since the first one is read. What tells a change
is what a program cannot set at will: the inode and the time of its last change, beside size, mode and
modification time.
"""

import difflib
import io
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from harnessgym.errors import SandboxError
from harnessgym.sandboxes.walk import FOLDER, open_at
from harnessgym.sandboxes.workspace import Workspace

IGNORED = frozenset({".git", ".hg", "__pycache__", ".pytest_cache", ".agent"})
"""Folders that are not looked into, wherever they are."""
_ENTRIES = 20_000
"""Files that are looked at; of more, the rest is not."""
_DEPTH = 64
_READ = 1 << 16
"""Bytes of a file whose lines are compared; of larger ones only the size is told."""
_SHOWN = 1 << 16
"""Characters of a difference, about; then it is cut off."""

Print = tuple[int, int, int, int, int]
"""Mode, inode, size, and the times of the last modification and the last change, of a file."""
Look = Mapping[str, Print]


def look(workspace: Workspace) -> Look:
    """Every file and link, by its path. Raises OSError or SandboxError when the workspace is gone."""
    found: dict[str, Print] = {}
    with workspace.opened() as root:
        _look_into(root, "", found, 0)
    return found


def _look_into(folder: int, prefix: str, found: dict[str, Print], depth: int) -> None:
    inner = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(found) >= _ENTRIES:
                return
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode):
                if entry.name not in IGNORED:
                    inner.append(entry.name)
            elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                found[prefix + entry.name] = (
                    status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
                )  # fmt: skip
    for name in inner if depth < _DEPTH else ():
        try:
            below = open_at(folder, name, FOLDER)
        except OSError:  # swapped for something else meanwhile, or locked
            continue
        try:
            _look_into(below, f"{prefix}{name}/", found, depth + 1)
        finally:
            os.close(below)


class WorkspaceChanges:
    """The difference between a workspace and its beginning, as often as it is asked for.

    `texts` are the files of the beginning that are known; the others are read from `folder`, which is ours,
    where there is one.
    """

    def __init__(self, workspace: Workspace, texts: Mapping[str, str], folder: Path | None) -> None:
        self._workspace = workspace
        self._texts = texts
        self._folder = folder
        self._first = self._last = look(workspace)
        self._shown = ""
        self._pieces: dict[str, tuple[Print | None, str]] = {}

    def diff(self) -> str:
        """Unified, file after file. Raises OSError or SandboxError when the workspace is gone."""
        seen = look(self._workspace)
        if seen == self._last:
            return self._shown
        pieces: dict[str, tuple[Print | None, str]] = {}
        size = 0
        for path in sorted(_differing(self._first, seen)):
            if size > _SHOWN:
                break
            there = seen.get(path)
            known = self._pieces.get(path)
            piece = known[1] if known is not None and known[0] == there else self._piece(path, there)
            pieces[path] = there, piece
            size += len(piece)
        self._last = seen
        self._pieces = pieces
        self._shown = "".join(piece for _, piece in pieces.values())
        return self._shown

    def _piece(self, path: str, there: Print | None) -> str:
        before, after = self._before(path), self._after(path, there)
        if before == after:
            return "" if path in self._first else f"New empty file {path}\n"
        if before is None or after is None:
            return f"{_what(path, path in self._first, there)}\n"
        old = f"a/{path}" if path in self._first else os.devnull
        new = f"b/{path}" if there is not None else os.devnull
        return "".join(_lines(before, after, old, new))

    def _before(self, path: str) -> str | None:
        """What a file held; None if that is no text, too large, or not known."""
        if path not in self._first:
            return ""
        if path in self._texts:
            text = self._texts[path]
            return text if len(text) <= _READ else None
        if self._folder is None:
            return None
        try:
            return (
                _text((self._folder / path).read_bytes()) if not (self._folder / path).is_symlink() else None
            )
        except OSError:
            return None

    def _after(self, path: str, there: Print | None) -> str | None:
        if there is None:
            return ""
        if not stat.S_ISREG(there[0]) or there[2] > _READ:
            return None
        try:
            return _text(self._workspace.read(path))
        except (OSError, SandboxError):  # it is changing, or closed to us
            return None


def _differing(first: Look, seen: Look) -> set[str]:
    return {path for path in {*first, *seen} if first.get(path) != seen.get(path)}


def _text(data: bytes) -> str | None:
    if len(data) > _READ or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _what(path: str, known: bool, there: Print | None) -> str:
    """A change that cannot be shown by lines."""
    if there is None:
        return f"Removed {path}"
    kind = "link" if stat.S_ISLNK(there[0]) else f"file of {there[2]} bytes"
    return f"{'Changed' if known else 'New'} {path} ({kind})"


def _lines(before: str, after: str, old: str, new: str) -> Iterator[str]:
    first, second = (io.StringIO(text, newline="\n").readlines() for text in (before, after))
    for line in difflib.unified_diff(first, second, old, new):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
