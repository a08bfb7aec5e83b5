"""Walks, copies and clears folders that another user controls and may still be changing.

Every step opens one name relative to a descriptor and follows no link. Number, depth and length are bounded.
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
"""Most nested folders; one descriptor is open for each."""
LENGTH = 3_000
"""Most bytes in a path. With a folder of ours in front it stays below the kernel's limit of 4,096."""
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
    """One name in a folder, with its status when it was read."""

    folder: int
    """Descriptor of the folder that holds it. Valid until the next entry is requested."""
    parents: tuple[str, ...]
    name: str
    status: os.stat_result

    @property
    def parts(self) -> tuple[str, ...]:
        """The names from the walk's root to this entry."""
        return (*self.parents, self.name)

    @property
    def path(self) -> str:
        """The path relative to the walk's root."""
        return "/".join(self.parts)


class Walk:
    """Yields every entry below `root`: a folder's files first, then each subfolder followed by its entries.

    Raises Overflow if there are more than `most` entries or a path is too deep or too long. A folder that
    cannot be entered raises SandboxError; with `lenient` it is listed in `left_out` instead. Entries that
    vanish meanwhile are skipped.
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
        # Never leave the file system: a mount below could lead to files of the host.
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
        # Read no more names than are left: a folder with millions of entries must not fill our memory.
        with os.scandir(folder) as entries:
            names = [each.name for each in itertools.islice(entries, self._left + 1)]
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
    """Whether an error means that an entry has changed since it was read, or that its owner denies access.

    Even root is denied a file on which its owner holds a lease.
    """
    return error.errno in _CHANGED


def open_at(folder: int, name: str, flags: int) -> int:
    """Opens a name for reading; restores its owner's read permission if it is missing. Raises OSError."""
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        _unlock(folder, name)
        return os.open(name, flags, dir_fd=folder)


def _unlock(folder: int, name: str) -> None:
    # `chmod` by name would follow a link, and O_PATH descriptors do not allow `fchmod`; `/proc/self/fd` does.
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            needed = stat.S_IRWXU if stat.S_ISDIR(mode) else stat.S_IRUSR
            os.chmod(f"/proc/self/fd/{descriptor}", stat.S_IMODE(mode) | needed)
    finally:
        os.close(descriptor)


def open_regular(folder: int, name: str) -> int | None:
    """Opens a regular file for reading; returns None for anything else. Raises OSError."""
    descriptor = open_at(folder, name, READ)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def copy(source: int, target: int, most: int) -> int:
    """Copies a file to an empty one and keeps its holes. Returns its size. Raises Overflow above `most`."""
    # The size is read once: a file that grows meanwhile is cut there, one that shrinks is padded with zeros.
    size = os.fstat(source).st_size
    if size > most:
        raise Overflow(f"A file of {size} bytes is larger than the {most} bytes that are left.")
    end = 0
    for start, stop in _extents(source, size):
        os.lseek(target, start, os.SEEK_SET)
        end = start
        while end < stop:
            sent = os.sendfile(target, source, end, min(_PIECE, stop - end))
            # The file was truncated meanwhile.
            if sent == 0:
                break
            end += sent
    if end < size:
        os.ftruncate(target, size)
    return size


def _extents(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges that hold data, up to `size`."""
    end = 0
    while end < size:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
            end = os.lseek(source, start, os.SEEK_HOLE)
        except OSError as error:
            # ENXIO: there is no data from here on, or the file was truncated meanwhile.
            if error.errno != errno.ENXIO:
                raise
            return
        if start < size:
            yield start, min(end, size)


def clear(root: int) -> None:
    """Removes everything in a folder, however deep, and whatever its permissions.

    Call it only when nobody changes the folder any more.
    """
    _open_up(root)
    # Repeated, because very deep folders are moved up to the root and removed in a later round.
    while names := os.listdir(root):
        for name in names:
            _remove(root, root, name, 0)


def _remove(root: int, folder: int, name: str, depth: int) -> None:
    """Removes one name. A folder below 64 others is moved to the root instead, to bound the recursion."""
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
