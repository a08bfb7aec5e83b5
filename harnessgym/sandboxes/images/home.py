"""Makes a path of an image, its home, a link to the workspace, and moves what was there to a folder for root.

Only root can read the original. So whatever a task's setup removes from the copy in the workspace, such as
later commits of a repository, is out of the agent's reach.
"""

from pathlib import PurePosixPath
from typing import Any

from harnessgym.errors import ImageError, TaskError
from harnessgym.sandbox import InstallStep
from harnessgym.sandboxes.containers import HOME, HOME_LABEL, SET_ASIDE, WORKSPACE
from harnessgym.sandboxes.images.builder import Layer
from harnessgym.sandboxes.images.connection import EngineConnection

WORKDIR = "@workdir"
"""Value of a home that stands for the image's WORKDIR; no home if that is `/`."""
_SYSTEM = (
    "/bin",
    "/boot",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/opt",
    "/sbin",
    "/srv",
    "/usr",
    "/usr/local",
    "/var",
)
"""Folders that cannot be moved because too much of an image depends on them."""
_COVERED = ("/dev", "/proc", "/sys", "/run", "/tmp", HOME, "/.harnessgym")  # noqa: S108
"""Folders that sandboxes mount over, which would hide a link in them."""
_ROOTS = "/root"
_MOVE = """\
umask 022; home=$1 aside=$2 workspace=$3
if [ -e "$home" ] && [ ! -d "$home" ]; then echo "$home is no folder"; exit 1; fi
if [ -e "$aside" ]; then echo "$aside is there: this image was given a home already"; exit 1; fi
mkdir -p "$home"
real=$(readlink -f "$home")
if [ "$real" != "$home" ]; then
    for each in $4; do
        case $real in /|"$each"|"$each"/*) echo "$home leads to $real, which cannot be moved"; exit 1;; esac
    done
fi
above=$real
while above=$(dirname "$above"); [ "$above" != / ]; do chmod o+x "$above"; done
mkdir -m 0700 "${aside%/*}"
mv "$real" "$aside"
if [ "$real" != "$workspace" ]; then ln -s "$workspace" "$real"; fi
mkdir -p "$workspace"
"""


def workdir(image: str, engine: EngineConnection) -> str:
    """The WORKDIR of an existing image; "/" if it has none. Raises ImageError if there is no such image."""
    return str(_found(image, engine).attrs["Config"].get("WorkingDir") or "/")


def home_layer(home: str, image: str, engine: EngineConnection) -> Layer | None:
    """The layer that gives an existing image a home; None if the home is `@workdir` and that is `/`.

    Raises TaskError for a path that cannot be a home, ImageError if the image has a volume there.
    """
    if home == WORKDIR:
        home = workdir(image, engine)
        if not home.strip("/"):
            return None
    home = checked_home(home)
    volumes = _found(image, engine).attrs["Config"].get("Volumes") or ()
    for volume in volumes:
        if PurePosixPath(volume).is_relative_to(home) or PurePosixPath(home).is_relative_to(volume):
            raise ImageError(
                f"The image {image} declares {volume} a VOLUME, so {home} cannot be a home. Take that line "
                "out."
            )
    forbidden = " ".join((*_SYSTEM, *_COVERED, _ROOTS, WORKSPACE))
    step = InstallStep(("sh", "-ec", _MOVE, "home", home, SET_ASIDE, WORKSPACE, forbidden))
    return Layer(step=step, changes=(f"LABEL {HOME_LABEL}={home}",))


def checked_home(home: str) -> str:
    """Returns a home's path without a trailing slash.

    Raises TaskError for a path that sandboxes or images need themselves.
    """
    path = PurePosixPath(home)
    if (
        not home.startswith("/")
        or ".." in path.parts
        or home.startswith("//")
        or any(sign.isspace() for sign in home)
    ):
        raise TaskError(
            f"A task's home must be an absolute path without `..` and spaces, or {WORKDIR!r}; {home!r} is "
            "not."
        )
    if path == PurePosixPath("/"):
        raise TaskError("A task's home cannot be `/`: name the folder below it that the agent is to work in.")
    if PurePosixPath(WORKSPACE) in path.parents:
        raise TaskError(f"A task's home cannot be {home}: it would lie in the workspace that it leads to.")
    if str(path) in _SYSTEM or any(path.is_relative_to(each) for each in _COVERED):
        raise TaskError(
            f"A task's home cannot be {home}, which the system in the image or the sandbox needs for itself."
        )
    return str(path)


def _found(image: str, engine: EngineConnection) -> Any:
    found = engine.image(image)
    if found is None:
        raise ImageError(
            f"The engine has no image {image!r}. Build or load it: harnessgym images list shows what is "
            "there."
        )
    return found
