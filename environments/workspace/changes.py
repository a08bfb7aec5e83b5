"""Diffs a workspace against its initial state, from outside, without running anything in it.

Each look takes one `stat` per file, and only files that changed since the first look are read. A program can
set size, mode and modification time, but not the inode and the time of the last change, so these count too.
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
"""Folders that are skipped everywhere."""
_ENTRIES = 20_000
"""Most files to look at. Further ones are ignored."""
_DEPTH = 64
_READ = 1 << 16
"""Largest file in bytes whose lines are compared. For larger ones only the size is shown."""
_SHOWN = 1 << 16
"""Approximate limit of a diff, in characters."""

Print = tuple[int, int, int, int, int]
"""A file's mode, inode, size, and the times of its last modification and last change in ns."""
Look = Mapping[str, Print]


def look(workspace: Workspace) -> Look:
    """The state of every file and link by path. Raises OSError or SandboxError if the workspace is gone."""
    states: dict[str, Print] = {}
    with workspace.opened() as root:
        _look_into(root, "", states, 0)
    return states


def _look_into(folder: int, prefix: str, prints: dict[str, Print], depth: int) -> None:
    inner = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if len(prints) >= _ENTRIES:
                return
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(status.st_mode):
                if entry.name not in IGNORED:
                    inner.append(entry.name)
            elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                prints[prefix + entry.name] = (
                    status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
                )  # fmt: skip
    for name in inner if depth < _DEPTH else ():
        try:
            below = open_at(folder, name, FOLDER)
        except OSError:
            # The agent's processes run meanwhile: the folder may be replaced or locked by now.
            continue
        try:
            _look_into(below, f"{prefix}{name}/", prints, depth + 1)
        finally:
            os.close(below)


class WorkspaceChanges:
    """The diff between a workspace and its initial state.

    `texts` are initial files that are known. The others are read from `folder`, a copy on this machine, if
    there is one.
    """

    def __init__(self, workspace: Workspace, texts: Mapping[str, str], folder: Path | None) -> None:
        self._workspace = workspace
        self._texts = texts
        self._folder = folder
        self._first = self._last = look(workspace)
        self._shown = ""
        self._pieces: dict[str, tuple[Print | None, str]] = {}

    def diff(self) -> str:
        """The unified diff of all files. Raises OSError or SandboxError if the workspace is gone."""
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
        """The initial text of a file; None if it is no text, too large, or unknown."""
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
        except (OSError, SandboxError):
            # The file is changing right now, or its mode forbids reading.
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
    """One line for a change that has no line diff."""
    if there is None:
        return f"Removed {path}"
    kind = "link" if stat.S_ISLNK(there[0]) else f"file of {there[2]} bytes"
    return f"{'Changed' if known else 'New'} {path} ({kind})"


def _lines(before: str, after: str, old: str, new: str) -> Iterator[str]:
    first, second = (io.StringIO(text, newline="\n").readlines() for text in (before, after))
    for line in difflib.unified_diff(first, second, old, new):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
