"""Removes our images that have not been used for long, and what killed builds left. Never touches others.

Ours are the images with our content label that only have names of layers or contexts. To keep an image and
those below it, give it a name of your own (`docker tag`). An image stays if a container uses it or another
image is built on it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harnessgym.sandboxes.images.build_lock import abandoned, discard, forget, idle, last_used
from harnessgym.sandboxes.images.builder import BUILDING, CONTEXTS, LABEL, LAYERS
from harnessgym.sandboxes.images.connection import EngineConnection


@dataclass(frozen=True, slots=True)
class Built:
    """One of our images."""

    id: str
    content: str
    names: tuple[str, ...]
    """Its tags; empty if they all point to newer images."""
    parent: str
    size: int
    """Size in bytes, including the images below it."""
    used: float
    """When it was last used on this machine, or built, in seconds since the epoch."""
    title: str
    """Title of its last layer."""

    @property
    def pinned(self) -> bool:
        """Whether it has a tag other than ours, which pins it."""
        return any(not name.startswith((f"{LAYERS}:", f"{CONTEXTS}:")) for name in self.names)


def built(engine: EngineConnection) -> list[Built]:
    """All our images, the most recently used first."""
    return sorted(map(_built, engine.images(LABEL)), key=lambda image: image.used, reverse=True)


def collect(engine: EngineConnection, *, older_s: float, dry: bool = False) -> list[Built]:
    """Removes and returns the images not used for `older_s` seconds. With `dry`, only returns them."""
    _abandoned(engine, dry=dry)
    limit = time.time() - older_s
    removed = []
    kept = set[str]()
    standing = built(engine)
    used = {container["ImageID"] for container in engine.client.api.containers(all=True)}
    # From the leaves down: an image can only be removed once nothing is built on it.
    while leaves := [image for image in standing if _leaf(image, standing) and image.id not in kept]:
        for image in leaves:
            if image.pinned or image.used > limit or image.id in used or not (dry or _remove(engine, image)):
                kept.add(image.id)
            else:
                removed.append(image)
                standing.remove(image)
    return removed


def _leaf(image: Built, standing: Sequence[Built]) -> bool:
    return not any(other.parent == image.id for other in standing)


def _remove(engine: EngineConnection, image: Built) -> bool:
    # A held lock means that a builder may be making this very image.
    with idle(image.content) as free:
        if not free or not all(_removed(engine, name) for name in image.names or (image.id,)):
            return False
        forget(image.content)
        return True


def _removed(engine: EngineConnection, name: str) -> bool:
    """Removes a tag."""
    # The engine's own builder leaves an unnamed image for every instruction of a context's Dockerfile.
    return engine.remove_image(name, below=name.startswith(f"{CONTEXTS}:"))


def _abandoned(engine: EngineConnection, *, dry: bool) -> None:
    """Removes what killed builds left. A running build holds the lock of its content."""
    named = engine.client.api.containers(all=True, filters={"name": f"^/{BUILDING}"})
    contents = {container["Names"][0].removeprefix(f"/{BUILDING}") for container in named}
    for content in contents.union(abandoned()):
        with idle(content) as free:
            if free and not dry:
                engine.remove_container(f"{BUILDING}{content}")
                discard(content)


def _built(image: Any) -> Built:
    attrs = image.attrs
    content = image.labels[LABEL]
    created = datetime.fromisoformat(attrs["Created"][:19] + "+00:00").timestamp()
    return Built(
        image.id,
        content,
        tuple(image.tags),
        attrs.get("Parent", ""),
        attrs["Size"],
        last_used(content) or created,
        attrs.get("Comment", ""),
    )
