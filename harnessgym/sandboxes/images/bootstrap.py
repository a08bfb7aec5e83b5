"""The base image: Debian's own packages, installed by debootstrap and imported, without a registry.

The release and the mirror are those of this machine's apt, so every package that can be installed here can be
installed in the image.
"""

import functools
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from harnessgym.errors import ImageError

_TAIL = 2_000
_TIMEOUT_S = 1_800
_LEFTOVERS = (
    "var/cache/apt/archives/*.deb",
    "var/lib/apt/lists/*",
    "var/log/*.log",
    "var/log/apt/*",
    "var/cache/debconf/*-old",
)


@dataclass(frozen=True, slots=True)
class Repository:
    """One line of apt's sources."""

    uri: str
    """May contain a user and password."""
    release: str
    components: tuple[str, ...]

    @property
    def line(self) -> str:
        """The line for `sources.list`, without a password."""
        parts = urlsplit(self.uri)
        host = parts.netloc.rpartition("@")[2]
        return f"deb {urlunsplit(parts._replace(netloc=host))} {self.release} {' '.join(self.components)}"


def codename() -> str:
    """The release name of this machine's system, e.g. `bookworm`. Raises ImageError if it has none."""
    release_name = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    if not release_name:
        raise ImageError(
            "This machine's system has no release name (VERSION_CODENAME in /etc/os-release), so the base "
            "image cannot be made here. Make it on Debian or Ubuntu and bring it over: docker save "
            "harnessgym/base | docker load."
        )
    return release_name


@functools.cache
def repositories() -> tuple[Repository, ...]:
    """The repositories of this machine's release for which apt has package lists.

    Raises ImageError if there are none.
    """
    try:
        process = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(RELEASE)|$(COMPONENT)",
                "Created-By: Packages"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        raise ImageError(
            f"Cannot ask apt for its repositories: {error}. The base image is made on Debian or Ubuntu."
        ) from error
    release = codename()
    components: dict[tuple[str, str], list[str]] = {}
    for line in process.stdout.splitlines():
        uri, name, component = line.split("|")
        if name == release or name.startswith(f"{release}-"):
            components.setdefault((uri, name), []).append(component)
    if not any(name == release for _, name in components):
        raise ImageError(
            f"apt has no lists of {release} on this machine. Run `apt-get update` as root, then try again."
        )
    return tuple(
        Repository(uri, name, tuple(dict.fromkeys(parts))) for (uri, name), parts in components.items()
    )


@contextmanager
def root(packages: tuple[str, ...], variant: str) -> Iterator[Path]:
    """Yields a folder with a fresh system of these packages, and removes it afterwards. Needs root.

    Raises ImageError with the end of debootstrap's output.
    """
    if (problem := debootstrap_available()) is not None:
        raise ImageError(problem)
    sources = repositories()
    mirror = next(source for source in sources if source.release == codename())
    with tempfile.TemporaryDirectory(prefix="harnessgym-base-") as folder:
        target = Path(folder) / "root"
        command = ["debootstrap", f"--variant={variant}", f"--components={','.join(mirror.components)}"]
        command += [f"--include={','.join(packages)}"] if packages else []
        command += [mirror.release, str(target), mirror.uri]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ImageError(
                f"debootstrap did not end within {_TIMEOUT_S} s. Is the Debian mirror reachable?"
            ) from error
        if done.returncode:
            output = (done.stdout + done.stderr)[-_TAIL:].strip()
            raise ImageError(f"debootstrap exited with {done.returncode}. The end of its output:\n{output}")
        _tidy(target, sources)
        yield target


def debootstrap_available() -> str | None:
    """Returns why no base image can be made here; None if one can."""
    if (
        shutil.which("debootstrap", path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin")
        is None
    ):
        return "debootstrap is not installed, which makes the base image: apt-get install debootstrap."
    return None


def _tidy(target: Path, sources: tuple[Repository, ...]) -> None:
    for pattern in _LEFTOVERS:
        for path in target.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    # debootstrap writes this machine's mirror with its password, its name servers and its host name into the
    # system; an image must not carry them.
    (target / "etc/apt/sources.list").write_text("".join(f"{source.line}\n" for source in sources))
    (target / "etc/resolv.conf").write_text("")
    (target / "etc/hostname").write_text("")
