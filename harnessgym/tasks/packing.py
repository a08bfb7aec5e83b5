"""Folders of a task as one string, for tasks whose files are not all text: tar, gzip, base64; equal folders, equal strings."""

import base64
import gzip
import io
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from harnessgym.errors import TaskError

MAX_BYTES = 32 << 20
"""Most that what is packed may hold."""


def packed(*folders: Path) -> str:
    """Everything in the folders, those that come later laid over those before; those that do not exist hold nothing.

    Regular files keep whether they are executable. Raises TaskError for links, special files, and too much.
    """
    found: dict[str, tuple[bytes, bool]] = {}
    for folder in folders:
        for name, path in _files(folder):
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    size = sum(len(data) for data, _ in found.values())
    if size > MAX_BYTES:
        raise TaskError(f"{folders[-1]} holds {size >> 20} MiB; at most {MAX_BYTES >> 20} are read. Put them into the image.")
    return packed_files({name: data for name, (data, _) in found.items()}, {name for name, (_, run) in found.items() if run})


def packed_files(files: Mapping[str, bytes], executable: Sequence[str] | set[str] = ()) -> str:
    """The same of relative paths and their contents."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(files[name]), 0o755 if name in executable else 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    return base64.b64encode(gzip.compress(buffer.getvalue(), mtime=0)).decode()


def archive_of(text: str) -> bytes:
    """The tar archive that was packed. Raises TaskError if it was none."""
    try:
        if not text:
            raise ValueError("it is empty")
        return gzip.decompress(base64.b64decode(text, validate=True))
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise TaskError(f"What should be packed files is none: {error}.") from error


def unpacked(text: str) -> dict[str, bytes]:
    """Relative path to content."""
    with tarfile.open(fileobj=io.BytesIO(archive_of(text))) as archive:
        return {entry.name: _content(archive, entry) for entry in archive if entry.isfile()}


def _content(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(entry)
    return b"" if file is None else file.read()


def _files(folder: Path) -> list[tuple[str, Path]]:
    files = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise TaskError(f"{path} is a link or a special file. Put the file itself there.")
        if path.is_file() and "__pycache__" not in path.parts:
            files.append((path.relative_to(folder).as_posix(), path))
    return files
