"""Images with something installed: the layers that put a harness into the image that a task names."""

from collections.abc import Sequence

from harnessgym.images.build import build
from harnessgym.images.builder import Builder, Layer, Say, silent
from harnessgym.images.connection import Connection
from harnessgym.images.recipes import recipe_name
from harnessgym.sandbox import Step


def ensure(
    image: str, steps: Sequence[Step], *, say: Say = silent, timeout_s: float = 3_600.0, engine: Connection | None = None
) -> str:
    """The name of an image that is `image` with the steps run in it as root, in order, with the network open.

    Each step is a layer that is made once, whichever processes ask for it and whatever follows it; `timeout_s` is for each.
    An image of ours is built first if it is not there. Nothing that a step was lent to reach its registries is in the result.
    Blocks: seconds to minutes, or about 10 ms if all is there. Raises ImageError with the tail of what the failing step said.
    """
    if engine is None:
        with Connection() as own:
            return ensure(image, steps, say=say, timeout_s=timeout_s, engine=own)
    builder = Builder(engine, say=say, timeout_s=timeout_s)
    ours = recipe_name(image)
    return builder.build(image if ours is None else build(ours, builder), [Layer(step=step) for step in steps])
