"""Images with something installed: the layers that put a harness into the image that a task names."""

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
    """The name of an image that is `image` with the steps run in it as root, in order, with the network open.

    Each step is a layer that is made once, whichever processes ask for it and whatever follows it;
    `timeout_s` is for each. An image of ours, or a `context:FOLDER`, is built first if it is not there. A
    `home` (see `Task.home`) is made before the steps. Nothing that a step was lent to reach its registries is
    in the result. Blocks: seconds to minutes, or about 10 ms if all is there. Raises ImageError with the tail
    of what the failing step said, TaskError for a path that cannot be a home.
    """
    with _builder(engine, say, timeout_s) as builder:
        name = _named(image, builder)
        moved = home_layer(home, name, builder.engine) if home else None
        layers = [Layer(step=step) for step in steps]
        return builder.build(name, layers if moved is None else [moved, *layers])


def workdir_of(image: str, *, engine: EngineConnection | None = None, timeout_s: float = _TIMEOUT_S) -> str:
    """The WORKDIR of an image, "/" where it has none. Like `ensure`, builds it if need be; blocks. Raises
    ImageError.
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
    """The name that the engine knows an image by, made first if it is ours or a context's."""
    folder = context_of(image)
    ours = recipe_name(image)
    if folder is not None:
        return build_context(folder, builder)
    return image if ours is None else build(ours, builder)
