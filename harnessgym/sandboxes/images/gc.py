"""Removes images of ours that nothing has used for long, and what killed builds left. Never an image that is
not ours.

Ours are those with our content label and no name but a layer's or a context's: to give one a name of your own
(`docker tag`) keeps it, and what it stands on. An image that a container uses, or another image stands on,
stays.
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
    """An image of ours."""

    id: str
    content: str
    names: tuple[str, ...]
    """Its tags; none if all have moved on to a newer image."""
    parent: str
    size: int
    """Bytes, with what it stands on."""
    used: float
    """When it was last asked for on this machine, or built: seconds since the epoch."""
    title: str
    """What its last layer does."""

    @property
    def pinned(self) -> bool:
        """Whether it has a name that people use."""
        return any(not name.startswith((f"{LAYERS}:", f"{CONTEXTS}:")) for name in self.names)


def built(engine: EngineConnection) -> list[Built]:
    """All images of ours, the latest used first."""
    images = engine.client.images.list(filters={"label": LABEL}, all=True)
    return sorted((_built(image) for image in images), key=lambda image: image.used, reverse=True)


def collect(engine: EngineConnection, *, older_s: float, dry: bool = False) -> list[Built]:
    """Removes what has not been used for `older_s` seconds, or only says what it would; returns it."""
    _abandoned(engine, dry=dry)
    limit = time.time() - older_s
    removed = []
    kept = set[str]()
    standing = built(engine)
    used = {container["ImageID"] for container in engine.client.api.containers(all=True)}
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
    with idle(image.content) as free:
        if not free or not all(_removed(engine, name) for name in image.names or (image.id,)):
            return False
        forget(image.content)
        return True


def _removed(engine: EngineConnection, name: str) -> bool:
    """The engine's own builder leaves an image without a name for every instruction."""
    return engine.remove_image(name, below=name.startswith(f"{CONTEXTS}:"))


def _abandoned(engine: EngineConnection, *, dry: bool) -> None:
    """What killed builds left: whoever builds holds the lock of its content."""
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
