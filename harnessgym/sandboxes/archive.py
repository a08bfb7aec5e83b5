"""Packs a workspace into one tar file for snapshots: regular files, folders, links, modes and mtimes.

Symbolic links are kept as they are, hard links become separate files, and devices, sockets and pipes are left
out. Unpacking writes through descriptors, like every other access to a workspace, and refuses names that lead
outside.

The field for the owner's name holds the nanoseconds of the modification time, because it has no other use
here. An extended header for each file would double the time to unpack.
"""

import os
import stat
import tarfile
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from harnessgym.errors import SandboxError
from harnessgym.sandboxes.walk import FolderEntry, Overflow, Walk, open_regular
from harnessgym.sandboxes.workspace import Workspace

_PIECE = 1 << 20
_SECOND = 10**9


def pack(workspace: Workspace, target: Path, *, max_bytes: int, max_files: int) -> int:
    """Writes a workspace to the new file `target`. Returns the number of bytes in its files.

    Folders and links count as files. Raises SandboxError if the workspace exceeds either bound, changes while
    it is read, or the file cannot be written.
    """
    left = max_bytes
    try:
        with workspace.opened() as root, tarfile.open(target, "x:", format=tarfile.GNU_FORMAT) as archive:
            for entry in Walk(root, max_files):
                left -= entry.status.st_size if stat.S_ISREG(entry.status.st_mode) else 0
                if left < 0:
                    raise Overflow(f"The workspace holds more than {max_bytes} bytes.")
                _add(archive, entry)
    except (OSError, Overflow) as error:
        target.unlink(missing_ok=True)
        raise SandboxError(f"Cannot keep a workspace in {target}: {error}") from error
    return max_bytes - left


def _add(archive: tarfile.TarFile, entry: FolderEntry) -> None:
    status = entry.status
    info = tarfile.TarInfo(entry.path)
    info.mode = stat.S_IMODE(status.st_mode)
    info.mtime, nanoseconds = divmod(status.st_mtime_ns, _SECOND)
    info.uname = str(nanoseconds)
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    elif stat.S_ISLNK(status.st_mode):
        info.type = tarfile.SYMTYPE
        info.linkname = os.readlink(entry.name, dir_fd=entry.folder)
        archive.addfile(info)
    elif stat.S_ISREG(status.st_mode):
        source = open_regular(entry.folder, entry.name)
        if source is None:
            raise SandboxError(f"Cannot keep {entry.path!r}: it changed while the workspace was read.")
        info.size = status.st_size
        with os.fdopen(source, "rb", 0) as file:
            archive.addfile(info, file)


def unpack(source: Path, workspace: Workspace) -> None:
    """Unpacks an archive over a workspace: files and links replace what is there, folders are merged.

    Raises SandboxError if `source` is not an archive, if a name or a link in a path leads outside, and for
    anything but files, folders and symbolic links.
    """
    try:
        with (
            open(source, "rb") as file,
            tarfile.open(fileobj=file, mode="r:") as archive,
            _Unpacking(workspace) as unpacking,
        ):
            for info in archive:
                unpacking.lay(info, file.fileno())
                # TarFile remembers every member otherwise, which takes much memory for large archives.
                archive.members.clear()  # type: ignore[attr-defined]
    except tarfile.TarError as error:
        raise SandboxError(f"Cannot unpack {source}: {error}") from error


class _Unpacking:
    """Unpacks members.

    Keeps the last member's folder open, because an archive lists files folder by folder.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._folder = -1
        self._parts: tuple[str, ...] = ()
        self._folders: list[tuple[tuple[str, ...], tarfile.TarInfo]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # Innermost folders first: a folder's mode may forbid entering it, and unpacking a member changes
            # its folder's time.
            if error is None:
                for parts, info in reversed(self._folders):
                    _keep(self._open(parts), info)
        finally:
            self._close()

    def lay(self, info: tarfile.TarInfo, source: int) -> None:
        """Unpacks one member. The modes and times of folders are set at the end."""
        parts = PurePosixPath(info.name).parts
        if not parts or info.name.startswith("/") or ".." in parts or "\0" in info.name:
            raise SandboxError(
                f"An archive holds {info.name!r}: names must be relative and stay inside the workspace."
            )
        if info.isdir():
            self._open(parts)
            self._folders.append((parts, info))
            return
        if not (info.issym() or (info.isreg() and not info.issparse())):
            raise SandboxError(
                f"An archive holds {info.name!r}, which is neither a plain file, a folder nor a symbolic "
                "link."
            )
        folder = self._open(parts[:-1])
        if info.issym():
            self._workspace.link(folder, parts[-1], info.linkname, info.name)
            os.utime(parts[-1], ns=_times(info), dir_fd=folder, follow_symlinks=False)
        else:
            self._file(info, source, folder, parts[-1])

    def _file(self, info: tarfile.TarInfo, source: int, folder: int, name: str) -> None:
        with self._workspace.created_in(folder, name, info.name) as target:
            done = 0
            while done < info.size:
                sent = os.sendfile(target, source, info.offset_data + done, min(_PIECE, info.size - done))
                if sent == 0:
                    raise SandboxError(f"An archive ends within {info.name!r}.")
                done += sent
            _keep(target, info)

    def _open(self, parts: tuple[str, ...]) -> int:
        if self._folder < 0 or parts != self._parts:
            self._close()
            with self._workspace.folder(parts, "/".join(parts), make=True) as folder:
                self._folder = os.dup(folder)
            self._parts = parts
        return self._folder

    def _close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


def _keep(target: int, info: tarfile.TarInfo) -> None:
    os.fchmod(target, info.mode & 0o777)
    os.utime(target, ns=_times(info))


def _times(info: tarfile.TarInfo) -> tuple[int, int]:
    nanoseconds = int(info.uname) if info.uname.isdecimal() else 0
    time = int(info.mtime) * _SECOND + nanoseconds % _SECOND
    return time, time
