"""Builds images with a harness installed: adds layers to the image that a task names.

The image's home becomes a link to the workspace, and what was there moves to a folder that only root can
read. So whatever a task's setup removes from the copy in the workspace, such as later commits of a
repository, is out of the agent's reach.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from harnessgym.errors import ImageError, TaskError
from harnessgym.sandbox import InstallStep
from harnessgym.sandboxes.containers import HOME, HOME_LABEL, SET_ASIDE, WORKSPACE
from harnessgym.sandboxes.images.build import build
from harnessgym.sandboxes.images.builder import Builder, Layer, Say, silent
from harnessgym.sandboxes.images.connection import EngineConnection
from harnessgym.sandboxes.images.contexts import build_context, context_of
from harnessgym.sandboxes.images.recipes import recipe_name

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
    return str(_inspect_image(image, engine).attrs["Config"].get("WorkingDir") or "/")


def home_layer(home: str, image: str, engine: EngineConnection) -> Layer | None:
    """The layer that gives an existing image a home; None if the home is `@workdir` and that is `/`.

    Raises TaskError for a path that cannot be a home, ImageError if the image has a volume there.
    """
    if home == WORKDIR:
        home = workdir(image, engine)
        if not home.strip("/"):
            return None
    home = checked_home(home)
    volumes = _inspect_image(image, engine).attrs["Config"].get("Volumes") or ()
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


def _inspect_image(image: str, engine: EngineConnection) -> Any:
    engine_image = engine.image(image)
    if engine_image is None:
        raise ImageError(
            f"The engine has no image {image!r}. Build or load it: harnessgym images list shows what is "
            "there."
        )
    return engine_image


_TIMEOUT_S = 3_600.0


def ensure(
    image: str,
    steps: Sequence[InstallStep],
    *,
    home: str = "",
    say: Say = silent,
    timeout_s: float = _TIMEOUT_S,
    engine: EngineConnection | None = None,
) -> str:
    """Runs the steps in `image` as root, in order, with network access. Returns the resulting image's name.

    Each step is a layer that is built once, whichever processes ask for it and whatever follows it, within
    `timeout_s`. If `image` is one of ours or a `context:FOLDER`, it is built first unless it exists. A `home`
    (see `Task.home`) is made before the steps. The result contains none of the settings with which steps
    reach their registries. Blocks for seconds to minutes, or about 10 ms if everything exists. Raises
    ImageError with the tail of the failing step's output, TaskError for a path that cannot be a home.
    """
    with _builder(engine, say, timeout_s) as builder:
        name = _named(image, builder)
        moved = home_layer(home, name, builder.engine) if home else None
        layers = [Layer(step=step) for step in steps]
        return builder.build(name, layers if moved is None else [moved, *layers])


def workdir_of(image: str, *, engine: EngineConnection | None = None, timeout_s: float = _TIMEOUT_S) -> str:
    """The WORKDIR of an image; "/" if it has none.

    Like `ensure`, blocks and builds the image if it is missing. Raises ImageError.
    """
    with _builder(engine, silent, timeout_s) as builder:
        return workdir(_named(image, builder), builder.engine)


@contextmanager
def _builder(engine: EngineConnection | None, say: Say, timeout_s: float) -> Iterator[Builder]:
    if engine is not None:
        yield Builder(engine, say=say, timeout_s=timeout_s)
        return
    with EngineConnection() as own:
        yield Builder(own, say=say, timeout_s=timeout_s)


def _named(image: str, builder: Builder) -> str:
    """The engine's name of an image. Builds it first if it is ours or a context's."""
    folder = context_of(image)
    ours = recipe_name(image)
    if folder is not None:
        return build_context(folder, builder)
    return image if ours is None else build(ours, builder)
