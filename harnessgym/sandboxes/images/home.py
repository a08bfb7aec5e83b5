"""The path of an image that the workspace stands for: what lies there is set aside, and the path leads to the
workspace.

What is set aside only root can read: what a task's setup takes away from the copy in a workspace, such as a
repository's future, is gone for the agent.
"""

from pathlib import PurePosixPath
from typing import Any

from harnessgym.errors import ImageError, TaskError
from harnessgym.sandbox import InstallStep
from harnessgym.sandboxes.containers import HOME, HOME_LABEL, SET_ASIDE, WORKSPACE
from harnessgym.sandboxes.images.builder import Layer
from harnessgym.sandboxes.images.connection import EngineConnection

WORKDIR = "@workdir"
"""As a home: the image's own WORKDIR, and none if that is `/`."""
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
"""Too much of an image hangs on these to move them."""
_COVERED = ("/dev", "/proc", "/sys", "/run", "/tmp", HOME, "/.harnessgym")  # noqa: S108
"""Where sandboxes have something of their own: a link in there would be covered."""
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
    """The WORKDIR of an image that is there, "/" where it has none. Raises ImageError."""
    return str(_found(image, engine).attrs["Config"].get("WorkingDir") or "/")


def home_layer(home: str, image: str, engine: EngineConnection) -> Layer | None:
    """What gives an image that is there a home; None if `@workdir` finds none.

    Raises TaskError for a path that cannot be one, ImageError for an image that keeps a volume there.
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
    """A home's path without a slash at its end. Raises TaskError for one that sandboxes or images need for
    themselves.
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
