"""Going through a folder that somebody else made, and may still be changing: from descriptor to descriptor,
one name at a time, following no link, within bounds of number, depth and length.
"""

import errno
import itertools
import os
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from harnessgym.errors import SandboxError

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
DEPTH = 256
"""Folders below one another; one descriptor is open for each."""
LENGTH = 3_000
"""Bytes of a path, so that it and a folder of ours stay below the kernel's 4,096."""
_PIECE = 1 << 20
_CHANGED = frozenset(
    {
        errno.ELOOP,
        errno.ENOTDIR,
        errno.ENOENT,
        errno.ENXIO,
        errno.EINVAL,
        errno.EACCES,
        errno.EPERM,
        errno.EWOULDBLOCK,
    }
)
_REMOVAL_DEPTH = 64


class Overflow(SandboxError):
    """A folder holds more than was allowed."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One name in a folder, with what it was when it was looked at."""

    folder: int
    """Descriptor of the folder that holds it, until the walk goes on."""
    parents: tuple[str, ...]
    name: str
    status: os.stat_result

    @property
    def parts(self) -> tuple[str, ...]:
        """The names from the walk's root to here."""
        return (*self.parents, self.name)

    @property
    def path(self) -> str:
        """Relative to the walk's root."""
        return "/".join(self.parts)


class Walk:
    """Every entry below the folder `root`: a folder's files first, then each of its folders followed by what
    that holds.

    Raises Overflow when there are more than `most` entries, or one is too deep. What cannot be entered raises
    SandboxError, or with `lenient` is only named in `left_out`; what vanishes on the way is passed over.
    """

    def __init__(self, root: int, most: int, *, lenient: bool = False) -> None:
        self.left_out: list[str] = []
        self._root = root
        self._most = most
        self._left = most
        self._lenient = lenient
        self._device = os.fstat(root).st_dev

    def __iter__(self) -> Iterator[FolderEntry]:
        return self._below(self._root, ".", ())

    def _below(self, above: int, name: str, parents: tuple[str, ...]) -> Iterator[FolderEntry]:
        folder = self._enter(above, name, parents)
        if folder is None:
            return
        try:
            inner: list[FolderEntry] = []
            for each in self._names(folder):
                entry = _look(folder, parents, each)
                if entry is None:
                    continue
                self._check(entry)
                if stat.S_ISDIR(entry.status.st_mode):
                    inner.append(entry)
                else:
                    yield entry
            for entry in inner:
                yield entry
                yield from self._below(folder, entry.name, entry.parts)
        finally:
            os.close(folder)

    def _enter(self, above: int, name: str, parents: tuple[str, ...]) -> int | None:
        try:
            folder = open_at(above, name, FOLDER)
        except FileNotFoundError:
            return None
        except OSError as error:
            if not changed(error):
                raise
            self._refuse("/".join(parents), error.strerror or str(error))
            return None
        if os.fstat(folder).st_dev == self._device:
            return folder
        os.close(folder)
        self._refuse("/".join(parents), "it is another file system")
        return None

    def _refuse(self, path: str, why: str) -> None:
        if not self._lenient:
            raise SandboxError(f"Cannot enter {path!r} in the workspace: {why}.")
        self.left_out.append(path)

    def _names(self, folder: int) -> list[str]:
        with os.scandir(folder) as found:
            names = [each.name for each in itertools.islice(found, self._left + 1)]
        self._left -= len(names)
        if self._left < 0:
            raise Overflow(f"The workspace holds more than {self._most} files and folders.")
        return sorted(names)

    def _check(self, entry: FolderEntry) -> None:
        if len(entry.parents) >= DEPTH or len(os.fsencode(entry.path)) > LENGTH:
            raise Overflow(f"The workspace holds paths of more than {DEPTH} folders or {LENGTH} bytes.")


def _look(folder: int, parents: tuple[str, ...], name: str) -> FolderEntry | None:
    try:
        return FolderEntry(folder, parents, name, os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return None


def changed(error: OSError) -> bool:
    """Whether an entry is no longer what it was when it was looked at, or its owner keeps even us out
    (with a lease).
    """
    return error.errno in _CHANGED


def open_at(folder: int, name: str, flags: int) -> int:
    """Opens a name for reading, after giving its owner back the right to where that was taken away. Raises
    OSError.
    """
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        _unlock(folder, name)
        return os.open(name, flags, dir_fd=folder)


def _unlock(folder: int, name: str) -> None:
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            needed = stat.S_IRWXU if stat.S_ISDIR(mode) else stat.S_IRUSR
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | needed)
    finally:
        os.close(descriptor)


def open_regular(folder: int, name: str) -> int | None:
    """A descriptor to read a regular file from; None for anything else. Raises OSError."""
    descriptor = open_at(folder, name, READ)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def copy(source: int, target: int, most: int) -> int:
    """Copies what a file holds at this moment to an empty one, holes as holes. Returns its size; Overflow
    above `most`.
    """
    size = os.fstat(source).st_size
    if size > most:
        raise Overflow(f"A file of {size} bytes is larger than the {most} bytes that are left.")
    end = 0
    for start, stop in _extents(source, size):
        os.lseek(target, start, os.SEEK_SET)
        end = start
        while end < stop:
            sent = os.sendfile(target, source, end, min(_PIECE, stop - end))
            if sent == 0:  # it was cut off meanwhile
                break
            end += sent
    if end < size:
        os.ftruncate(target, size)
    return size


def _extents(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Where there is data, up to `size`."""
    end = 0
    while end < size:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nothing from there on, or it was cut off meanwhile
                raise
            return
        if start < size:
            yield start, min(end, size)


def clear(root: int) -> None:
    """Removes all that lies in a folder, however deep and however locked. Only when nobody changes it any
    more.
    """
    _open_up(root)
    while names := os.listdir(root):
        for name in names:
            _remove(root, root, name, 0)


def _remove(root: int, folder: int, name: str, depth: int) -> None:
    """Removes one name. Folders far down are moved up to the root, whose turn comes again."""
    if _removed(folder, name):
        return
    inner = open_at(folder, name, FOLDER)
    try:
        _open_up(inner)
        if depth >= _REMOVAL_DEPTH:
            os.rename(name, f".{uuid.uuid4().hex}", src_dir_fd=folder, dst_dir_fd=root)
            return
        for each in os.listdir(inner):
            _remove(root, inner, each, depth + 1)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


def _removed(folder: int, name: str) -> bool:
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    except FileNotFoundError:
        return True
    return True


def _open_up(folder: int) -> None:
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        os.fchmod(folder, mode | stat.S_IRWXU)
