"""Builds our own images from their recipes, parents first. Unchanged images are not built again."""

import platform
import subprocess
import threading
import tomllib
from pathlib import Path
from typing import IO, Any, cast

from pydantic import BaseModel, ConfigDict

from harnessgym.errors import ImageError
from harnessgym.sandboxes.images.bootstrap import codename, root
from harnessgym.sandboxes.images.builder import LABEL, LAYERS, Builder, content_of
from harnessgym.sandboxes.images.recipes import BASE, REPOSITORY, folder, recipe, recipe_name

_RELEASE = "harnessgym.release"
"""Label of the base image: the release that it contains."""


class _Base(BaseModel):
    """The content of `docker/base/recipe.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    variant: str
    """debootstrap's variant."""
    packages: tuple[str, ...]
    """Packages besides the variant's."""
    changes: tuple[str, ...]
    """Dockerfile instructions that set the image's settings."""


def build(name: str, builder: Builder) -> str:
    """Builds a recipe's image and its parents unless they exist. Returns its name, `harnessgym/NAME:latest`.

    Raises ImageError with the tail of the failing step's output.
    """
    if name == BASE:
        tag = _base(builder)
    else:
        made = recipe(name)
        parent = recipe_name(made.parent)
        tag = builder.build(made.parent if parent is None else build(parent, builder), made.layers)
    return _tagged(builder, name, tag)


def _tagged(builder: Builder, name: str, tag: str) -> str:
    made = f"{REPOSITORY}{name}:latest"
    image = builder.engine.image(tag)
    at = builder.engine.image(made)
    if image is None:
        raise ImageError(f"The image {tag} is gone. Another process may have removed it.")
    if at is None or at.id != image.id:
        image.tag(f"{REPOSITORY}{name}", "latest")
    return made


def _base(builder: Builder) -> str:
    base_recipe = _Base.model_validate(tomllib.loads((folder() / BASE / "recipe.toml").read_text()))
    there = builder.engine.image(f"{REPOSITORY}{BASE}:latest")
    release = there.labels.get(_RELEASE) if there is not None else None
    content = content_of(["base", release or codename(), platform.machine(), base_recipe.model_dump()])
    # An image that was loaded from a file has no layer tag. Without it, `once` would build the image again.
    if there is not None and there.labels.get(LABEL) == content:
        there.tag(LAYERS, content)
    builder.once(content, lambda: _import(builder, base_recipe, content))
    return f"{LAYERS}:{content}"


def _import(builder: Builder, base: _Base, content: str) -> None:
    """Makes the base system and imports it into the engine as one layer."""
    builder.say(f"debootstrap {codename()}")
    changes = [*base.changes, f"LABEL {LABEL}={content}", f"LABEL {_RELEASE}={codename()}"]
    with root(base.packages, base.variant) as target:
        builder.say("importing it")
        _send(builder.engine.client, target, content, changes)


def _send(client: Any, target: Path, content: str, changes: list[str]) -> None:
    command = ["tar", "--numeric-owner", "-C", str(target), "-c", "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as packing:
        stderr: list[bytes] = []
        # tar blocks if nobody reads its stderr while the engine reads its stdout.
        reader = threading.Thread(target=lambda: stderr.append(cast("IO[bytes]", packing.stderr).read()))
        reader.start()
        answer = client.api.import_image_from_stream(
            packing.stdout, repository=LAYERS, tag=content, changes=changes
        )
        reader.join()
    if packing.returncode:
        raise ImageError(f"tar exited with {packing.returncode}: {stderr[0].decode(errors='replace')[-500:]}")
    if '"error"' in str(answer):
        raise ImageError(f"The engine did not import the base image: {answer}")
