"""Exports a workspace as plain data, whatever it contains.

The result holds only folders, regular files, and links that stay inside it, however they are followed.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from harnessgym.errors import SandboxError
from harnessgym.sandbox import WorkspaceExport
from harnessgym.sandboxes.walk import WRITE, FolderEntry, Overflow, Walk, changed, copy, open_regular

_HOPS = 40
"""Most links followed in one path, as in the kernel."""


class Exporter:
    """One export of the folder `root` to the new folder `local`."""

    def __init__(
        self, root: int, local: Path, max_bytes: int, max_files: int, *, without: str = "", links: bool = True
    ) -> None:
        """Leaves out the entry named `without`, and every link unless `links` is set."""
        self._walk = Walk(root, max_files, lenient=True)
        self._without = without
        self._keeps_links = links
        self._local = local
        self._left = max_bytes
        self._max_bytes = max_bytes
        self._files = 0
        self._left_out: list[str] = []
        self._links: dict[tuple[str, ...], str] = {}
        self._folders: list[FolderEntry] = []

    def run(self) -> WorkspaceExport:
        """Exports the folder.

        Raises SandboxError if this machine cannot store the files, FileExistsError if `local` exists.
        """
        self._local.mkdir()
        return self._export(self._walk)

    def alone(self, entry: FolderEntry) -> WorkspaceExport:
        """Exports one file of the folder to `local`, which must exist. Raises SandboxError like `run`."""
        return self._export([entry])

    def _export(self, entries: Iterable[FolderEntry]) -> WorkspaceExport:
        overflow = ""
        try:
            for entry in entries:
                if self._without and entry.parts[0] == self._without:
                    self._left_out += [entry.path] if len(entry.parts) == 1 else []
                else:
                    self._take(entry)
        except Overflow as error:
            overflow = str(error)
        except OSError as error:
            raise SandboxError(f"Cannot export a workspace to {self._local}: {error.strerror}.") from error
        self._link()
        # Times last and innermost folders first: every new entry changes the time of its folder.
        for entry in reversed(self._folders):
            os.utime(self._target(entry), ns=_times(entry))
        left_out = sorted(printable(path) for path in (*self._left_out, *self._walk.left_out))
        return WorkspaceExport(self._files, self._max_bytes - self._left, tuple(left_out), overflow)

    def _take(self, entry: FolderEntry) -> None:
        mode = entry.status.st_mode
        if stat.S_ISDIR(mode):
            self._target(entry).mkdir(mode=0o755)
            self._folders.append(entry)
        elif stat.S_ISLNK(mode) and self._keeps_links:
            self._note(entry)
        elif not stat.S_ISREG(mode) or not self._copy(entry):
            self._left_out.append(entry.path)

    def _note(self, entry: FolderEntry) -> None:
        try:
            self._links[entry.parts] = os.readlink(entry.name, dir_fd=entry.folder)
        except OSError as error:
            if not changed(error):
                raise
            self._left_out.append(entry.path)

    def _copy(self, entry: FolderEntry) -> bool:
        """Copies one file. Returns whether it still was a regular file."""
        source = _source(entry)
        if source is None:
            return False
        try:
            target = os.open(self._target(entry), WRITE, 0o644)
            try:
                self._left -= self._bounded_copy(source, target)
                os.fchmod(target, 0o644 | entry.status.st_mode & 0o111)
                os.utime(target, ns=_times(entry))
            finally:
                os.close(target)
        finally:
            os.close(source)
        self._files += 1
        return True

    def _bounded_copy(self, source: int, target: int) -> int:
        try:
            return copy(source, target, self._left)
        except Overflow as error:
            raise Overflow(f"The workspace holds more than {self._max_bytes} bytes.") from error

    def _link(self) -> None:
        """Makes the links. Runs after all files are written, so that nothing is written through a link."""
        for parts, goal in self._links.items():
            path = "/".join(parts)
            if stays_inside(parts, self._links):
                os.symlink(goal, self._local / path)
            else:
                self._left_out.append(path)

    def _target(self, entry: FolderEntry) -> Path:
        return self._local / entry.path


def _source(entry: FolderEntry) -> int | None:
    try:
        return open_regular(entry.folder, entry.name)
    except OSError as error:
        if not changed(error):
            raise
        return None


def stays_inside(link: tuple[str, ...], links: Mapping[tuple[str, ...], str]) -> bool:
    """Whether a link stays inside the folder, followed as the kernel would with all `links` in place."""
    here: list[str] = []
    todo = list(reversed(link))
    hops = 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if not here:
                return False
            here.pop()
            continue
        goal = links.get((*here, name))
        if goal is None:
            here.append(name)
            continue
        hops += 1
        if hops > _HOPS or goal.startswith("/"):
            return False
        todo.extend(reversed(goal.split("/")))
    return True


def printable(path: str) -> str:
    """A path as valid text on one line; invalid bytes and unprintable characters become escapes."""
    text = os.fsencode(path).decode(errors="backslashreplace")
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def _times(entry: FolderEntry) -> tuple[int, int]:
    return entry.status.st_mtime_ns, entry.status.st_mtime_ns
