"""Safe access to a rollout's folder, while and after a harness writes to it.

Anything that the harness leaves may be a trap: a link to one of our keys, a FIFO that blocks a reader, a
folder swapped for a link between check and use, a sparse file of a terabyte. So every access starts at the
folder's own descriptor, opens one name at a time, follows no link, and is bounded.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from harnessgym.errors import SandboxError
from harnessgym.sandbox import WorkspaceExport
from harnessgym.sandboxes.exporting import Exporter
from harnessgym.sandboxes.walk import FOLDER, READ, WRITE, Overflow, Walk, clear, copy, open_at, open_regular

_ENTRIES = 1_000_000
"""Most files and folders that one `copy_out` or `size` visits."""


class Workspace:
    """The folder `root`, whose files belong to user and group `owner` (None: to us).

    `root` is a path, or a descriptor of a folder that may lie in another mount namespace. The caller keeps
    ownership of a descriptor. One `read` or `copy_out` returns at most `max_bytes`.
    """

    def __init__(self, root: Path | int, owner: int | None, max_bytes: int) -> None:
        self.root = root
        self._owner = owner
        self._max_bytes = max_bytes

    def make(self) -> None:
        """Creates the folder at the path `root`, accessible to its owner only."""
        assert isinstance(self.root, Path)
        self.root.mkdir(mode=0o700)
        self._own(self.root)

    def remove(self) -> None:
        """Deletes everything, however deep, including what the harness made unreadable.

        Call it only when the harness's processes are dead.
        """
        if isinstance(self.root, Path) and not os.path.lexists(self.root):
            return
        with self.opened() as root:
            clear(root)
        if isinstance(self.root, Path):
            self.root.rmdir()

    def read(self, path: str) -> bytes:
        """Returns the content of a regular file. Raises SandboxError above `max_bytes`."""
        # One byte more than allowed tells a file that is too large; its size could change after a check.
        with self.parent(path) as (folder, name), os.fdopen(self._regular(folder, name, path), "rb") as file:
            data = file.read(self._max_bytes + 1)
        if len(data) > self._max_bytes:
            raise self._too_large(path)
        return data

    def write(self, path: str, data: bytes) -> None:
        """Writes a file in place of whatever is at `path`. Raises SandboxError if that is a folder."""
        # Unbuffered: the data is in memory already, and a full disk raises at the write.
        with self.created(path) as descriptor, os.fdopen(os.dup(descriptor), "wb", 0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) or 0 :]

    def copy_in(self, local: Path, path: str) -> None:
        """Copies a file or a whole folder into the workspace, with modification times and execute bits."""
        if local.is_symlink():
            raise SandboxError(f"Cannot upload {local}: it is a link. Upload what it points to.")
        if local.is_dir():
            with self.folder(_inside(path), path, make=True):
                pass
            for child in sorted(local.iterdir()):
                self.copy_in(child, f"{path}/{child.name}")
            return
        with _held(os.open(local, READ)) as source:
            status = os.fstat(source)
            if not stat.S_ISREG(status.st_mode):
                raise SandboxError(f"Cannot upload {local}: it is no regular file.")
            with self.created(path) as target:
                copy(source, target, status.st_size)
                _keep(target, status)

    def copy_out(self, path: str, local: Path) -> None:
        """Copies a file or a whole folder to `local`. Raises SandboxError above `max_bytes` in all."""
        if not _inside(path):
            with self.opened() as root:
                self._folder_out(root, path, local)
            return
        with self.parent(path) as (folder, name):
            if self._is_folder(folder, name, path):
                with _held(self._open(name, FOLDER, folder, path)) as root:
                    self._folder_out(root, path, local)
            else:
                with _held(self._regular(folder, name, path)) as source:
                    self._file_out(source, path, local, self._max_bytes)

    def export(self, local: Path, max_bytes: int, max_files: int, *, without: str = "") -> WorkspaceExport:
        """Copies files, folders and links to the new folder `local`, with times and execute bits.

        Folders and links count against `max_files` too. The entry named `without` is left out. Raises
        SandboxError if this machine cannot store the files.
        """
        with self.opened() as root:
            return Exporter(root, local, max_bytes, max_files, without=without).run()

    def size(self) -> int:
        """Bytes that its files use on disk."""
        with self.opened() as root:
            return sum(entry.status.st_blocks * 512 for entry in Walk(root, _ENTRIES, lenient=True))

    def _folder_out(self, root: int, path: str, local: Path) -> None:
        """Copies a folder out. Raises SandboxError for anything but files and folders."""
        local.mkdir()
        left = self._max_bytes
        for entry in Walk(root, _ENTRIES):
            if stat.S_ISDIR(entry.status.st_mode):
                (local / entry.path).mkdir()
                continue
            full = str(PurePosixPath(path) / entry.path)
            with _held(self._regular(entry.folder, entry.name, full)) as source:
                left -= self._file_out(source, full, local / entry.path, left)

    def _file_out(self, source: int, path: str, local: Path, most: int) -> int:
        target = os.open(local, WRITE, 0o644)
        try:
            size = copy(source, target, most)
            _keep(target, os.fstat(source))
        except Overflow as error:
            raise self._too_large(path) from error
        finally:
            os.close(target)
        return size

    def _regular(self, folder: int, name: str, path: str) -> int:
        try:
            descriptor = open_regular(folder, name)
        except OSError as error:
            raise _refusal(path, error) from error
        if descriptor is None:
            raise SandboxError(f"Cannot read {path!r} in the workspace: it is no regular file.")
        return descriptor

    def _is_folder(self, folder: int, name: str, path: str) -> bool:
        try:
            return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        except OSError as error:
            raise _refusal(path, error) from error

    def _too_large(self, path: str) -> SandboxError:
        return SandboxError(
            f"Cannot read {path!r} in the workspace: it passes the limit of {self._max_bytes} bytes."
        )

    @contextmanager
    def created(self, path: str) -> Iterator[int]:
        """Yields a descriptor of a new, empty file in place of whatever was at `path`.

        An OSError raised while the caller fills it becomes a SandboxError.
        """
        with (
            self.parent(path, make=True) as (folder, name),
            self.created_in(folder, name, path) as descriptor,
        ):
            yield descriptor

    @contextmanager
    def created_in(self, folder: int, name: str, path: str) -> Iterator[int]:
        """Like `created`, in an opened folder; `path` is for messages."""
        with _filling(path):
            # Removed first and made with O_EXCL: writing into an existing file could change a hard link to
            # another file, or block on a FIFO.
            _unlink(folder, name, path)
            descriptor = os.open(name, WRITE, 0o644, dir_fd=folder)
            try:
                self._own(descriptor)
                yield descriptor
            finally:
                os.close(descriptor)

    def link(self, folder: int, name: str, goal: str, path: str) -> None:
        """Makes a symbolic link in an opened folder, in place of anything but a folder."""
        with _filling(path):
            _unlink(folder, name, path)
            os.symlink(goal, name, dir_fd=folder)
            if self._owner is not None:
                os.chown(name, self._owner, self._owner, dir_fd=folder, follow_symlinks=False)

    @contextmanager
    def parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yields a descriptor of the folder that holds `path`, and the last name of `path`."""
        parts = _inside(path)
        if not parts:
            raise SandboxError(f"Path {path!r} names the workspace itself, where a file in it is needed.")
        with self.folder(parts[:-1], path, make=make) as folder:
            yield folder, parts[-1]

    @contextmanager
    def folder(self, parts: tuple[str, ...], path: str, *, make: bool = False) -> Iterator[int]:
        """Yields a descriptor of the folder at `parts`, none of which may be `..`; `path` is for messages."""
        with self.opened() as folder:
            for name in parts:
                made = make and self._make_folder(folder, name, path)
                with _held(self._open(name, FOLDER, folder, path)) as inner:
                    # Reuse the one descriptor, so that a deep path needs no more than two.
                    os.dup2(inner, folder, inheritable=False)
                if made:
                    self._own(folder)
            yield folder

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Yields a descriptor of the workspace itself. Raises FileNotFoundError if it is gone."""
        if isinstance(self.root, int):
            descriptor = os.open(".", FOLDER, dir_fd=self.root)
        else:
            with _held(os.open(self.root.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as above:
                descriptor = open_at(above, self.root.name, FOLDER)
        with _held(descriptor):
            yield descriptor

    def _make_folder(self, folder: int, name: str, path: str) -> bool:
        """Makes a folder. Returns False if it exists already."""
        with _filling(path), contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=folder)
            return True
        return False

    def _open(self, name: str, flags: int, folder: int, path: str) -> int:
        try:
            return open_at(folder, name, flags)
        except OSError as error:
            raise _refusal(path, error) from error

    def _own(self, target: Path | int) -> None:
        if self._owner is not None:
            os.chown(target, self._owner, self._owner)


def _inside(path: str) -> tuple[str, ...]:
    """Splits a path in the workspace into names; empty for the workspace itself."""
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or "\0" in path:
        raise SandboxError(f"Path {path!r} must be relative and stay inside the workspace.")
    return parts


@contextmanager
def _held(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _unlink(folder: int, name: str, path: str) -> None:
    """Removes anything but a folder from an opened folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except IsADirectoryError as error:
        raise SandboxError(f"Cannot write {path!r} in the workspace: it is a folder.") from error


@contextmanager
def _filling(path: str) -> Iterator[None]:
    """Turns an OSError, such as a full disk, into a SandboxError that names the reason."""
    try:
        yield
    except OSError as error:
        raise SandboxError(f"Cannot write {path!r} in the workspace: {error.strerror}.") from error


def _refusal(path: str, error: OSError) -> Exception:
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{path!r} is not in the workspace.")
    # ELOOP or ENOTDIR: a link or a file stands where a folder or a file should be.
    return SandboxError(f"Cannot open {path!r} in the workspace: {error.strerror}. Links are not followed.")


def _keep(target: int, status: os.stat_result) -> None:
    """Gives a copy the times and execute bits of its source."""
    os.fchmod(target, 0o644 | status.st_mode & 0o111)
    os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
