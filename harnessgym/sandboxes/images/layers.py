"""Builds images with a harness installed: adds layers to the image that a task names."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from harnessgym.sandbox import InstallStep
from harnessgym.sandboxes.images.build import build
from harnessgym.sandboxes.images.builder import Builder, Layer, Say, silent
from harnessgym.sandboxes.images.connection import EngineConnection
from harnessgym.sandboxes.images.contexts import build_context, context_of
from harnessgym.sandboxes.images.home import home_layer, workdir
from harnessgym.sandboxes.images.recipes import recipe_name

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
