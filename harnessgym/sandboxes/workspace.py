"""A rollout's folder on this machine, and safe access to it while and after somebody else writes there.

Whatever the harness leaves may be a trap: a link to a key of ours, a FIFO that blocks a reader, a folder swapped for a
link between check and use. So every access walks down from the folder's own descriptor, one name at a time, and follows
no link.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from harnessgym.errors import SandboxError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Workspace:
    """The folder at `root`, whose files belong to user and group `owner` (None: to us)."""

    def __init__(self, root: Path, owner: int | None, max_bytes: int) -> None:
        self.root = root
        self._owner = owner
        self._max_bytes = max_bytes

    def make(self) -> None:
        """Creates the folder, closed to everyone but its owner."""
        self.root.mkdir(mode=0o700)
        self._own(self.root)

    def remove(self) -> None:
        """Deletes everything, also what the harness made unreadable. Only when its processes are dead."""
        try:
            shutil.rmtree(self.root)
        except PermissionError:
            for folder, _, _ in os.walk(self.root):
                os.chmod(folder, 0o700)
            shutil.rmtree(self.root)
        except FileNotFoundError:
            return

    def read(self, path: str) -> bytes:
        """The content of a regular file of at most `max_bytes`."""
        with self._parent(path) as (folder, name):
            return self._read_at(folder, name, path)

    def write(self, path: str, data: bytes) -> None:
        """Replaces whatever is at `path`, unless it is a folder."""
        with self._parent(path, make=True) as (folder, name):
            try:
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                pass
            except IsADirectoryError as error:
                raise SandboxError(f"Cannot write {path!r} in the workspace: it is a folder.") from error
            descriptor = os.open(name, _WRITE, 0o644, dir_fd=folder)
            with os.fdopen(descriptor, "wb") as file:
                self._own(descriptor)
                file.write(data)

    def copy_in(self, local: Path, path: str) -> None:
        """Copies a file, or a folder with all it holds."""
        if local.is_symlink():
            raise SandboxError(f"Cannot upload {local}: it is a link. Upload what it points to.")
        if not local.is_dir():
            self.write(path, local.read_bytes())
            return
        for child in sorted(local.iterdir()):
            self.copy_in(child, f"{path}/{child.name}")

    def copy_out(self, path: str, local: Path) -> None:
        """Copies a file or a whole folder to `local`, at most `max_bytes` in all."""
        if PurePosixPath(path).parts in ((), (".",)):
            with self._root() as root:
                self._export(root, local, [self._max_bytes])
            return
        with self._parent(path) as (folder, name):
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                local.write_bytes(self._read_at(folder, name, path))
                return
            inner = self._open(name, _FOLDER, folder, path)
            try:
                self._export(inner, local, [self._max_bytes])
            finally:
                os.close(inner)

    def _export(self, folder: int, local: Path, budget: list[int]) -> None:
        """Depth first; `budget` holds the bytes that may still be copied."""
        local.mkdir()
        for name in sorted(os.listdir(folder)):
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                inner = self._open(name, _FOLDER, folder, name)
                try:
                    self._export(inner, local / name, budget)
                finally:
                    os.close(inner)
                continue
            data = self._read_at(folder, name, str(local / name), budget[0])
            budget[0] -= len(data)
            (local / name).write_bytes(data)

    def _read_at(self, folder: int, name: str, path: str, limit: int | None = None) -> bytes:
        limit = self._max_bytes if limit is None else limit
        descriptor = self._open(name, _READ, folder, path)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise SandboxError(f"Cannot read {path!r} in the workspace: it is no regular file.")
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise SandboxError(f"Cannot read {path!r} in the workspace: it passes the limit of {self._max_bytes} bytes.")
        return data

    @contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """A descriptor of the folder that holds `path`, and the last name of `path`."""
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path:
            raise SandboxError(f"Path {path!r} must be relative and stay inside the workspace.")
        with self._root() as folder:
            for name in parts[:-1]:
                if make:
                    self._make_folder(folder, name)
                inner = self._open(name, _FOLDER, folder, path)
                os.dup2(inner, folder, inheritable=False)
                os.close(inner)
            yield folder, parts[-1]

    @contextmanager
    def _root(self) -> Iterator[int]:
        descriptor = os.open(self.root, _FOLDER)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _make_folder(self, folder: int, name: str) -> None:
        try:
            os.mkdir(name, 0o755, dir_fd=folder)
        except FileExistsError:
            return
        if self._owner is not None:
            os.chown(name, self._owner, self._owner, dir_fd=folder, follow_symlinks=False)

    def _open(self, name: str, flags: int, folder: int, path: str) -> int:
        try:
            return os.open(name, flags, dir_fd=folder)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{path!r} is not in the workspace.") from error
        except OSError as error:  # ELOOP, ENOTDIR: a link or a file stands where a folder or a file should
            raise SandboxError(f"Cannot open {path!r} in the workspace: {error.strerror}. Links are not followed.") from error

    def _own(self, target: Path | int) -> None:
        if self._owner is not None:
            os.chown(target, self._owner, self._owner)
