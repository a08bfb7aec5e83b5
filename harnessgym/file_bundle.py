"""A task's folders as JSON values: text files as readable text, all others packed into one string.

The string is a base64 of a gzipped tar archive. Equal files give equal strings.
"""

import base64
import gzip
import io
import tarfile
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harnessgym.errors import TaskError

MAX_BYTES = 32 << 20
"""Most bytes in a bundle."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Files by relative path."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """Files that are UTF-8 text."""
    rest: str = ""
    """The other files, packed; empty if there are none."""
    executable: tuple[str, ...] = ()
    """Paths of files that their owner may execute."""

    def archive(self) -> bytes:
        """A tar archive of all files. Raises `TaskError` if `rest` is not a packed string."""
        files = {name: text.encode() for name, text in self.texts.items()}
        return _archive({**files, **(unpacked(self.rest) if self.rest else {})}, self.executable)


def bundle(*folders: Path) -> Bundle:
    """Bundle the files of folders. Later folders overwrite earlier ones; missing folders count as empty.

    Raises `TaskError` for links, special files, and more than `MAX_BYTES`.
    """
    files: dict[str, tuple[bytes, bool]] = {}
    for folder in folders:
        for name, path in _files(folder):
            files[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    size = sum(len(data) for data, _ in files.values())
    if size > MAX_BYTES:
        raise TaskError(
            f"{folders[-1]} holds {size >> 20} MiB; at most {MAX_BYTES >> 20} are read. Put them into the "
            "image."
        )
    return bundled(
        {name: data for name, (data, _) in files.items()}, [name for name, (_, run) in files.items() if run]
    )


def bundled(files: Mapping[str, bytes], executable: Collection[str] = ()) -> Bundle:
    """Bundle files given by their contents."""
    texts = dict[str, str]()
    rest = dict[str, bytes]()
    for name in sorted(files):
        try:
            texts[name] = files[name].decode()
        except UnicodeDecodeError:
            rest[name] = files[name]
    return Bundle(texts, packed(rest) if rest else "", tuple(sorted(executable)))


def packed(files: Mapping[str, bytes]) -> str:
    """Pack files into one string."""
    # Without a time stamp, so that equal files give equal strings.
    return base64.b64encode(gzip.compress(_archive(files, ()), mtime=0)).decode()


def unpacked(text: str) -> dict[str, bytes]:
    """Unpack a string of `packed`. Raises `TaskError` if it is not one."""
    try:
        with tarfile.open(
            fileobj=io.BytesIO(gzip.decompress(base64.b64decode(text, validate=True)))
        ) as archive:
            return {entry.name: _content(archive, entry) for entry in archive if entry.isfile()}
    except (ValueError, OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise TaskError(f"The packed files cannot be unpacked: {error}.") from error


def _archive(files: Mapping[str, bytes], executable: Collection[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        # Sorted, without times and owners: equal files give equal archives.
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size = len(files[name])
            entry.mode = 0o755 if name in executable else 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    return buffer.getvalue()


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
