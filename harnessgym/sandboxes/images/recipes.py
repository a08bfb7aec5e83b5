"""Recipes of HarnessGym's own images: simple Dockerfiles in `docker/`, one folder each.

A recipe may use `FROM`, `RUN`, `COPY` and instructions that change settings. Everything else is refused, so
that a recipe means the same to `docker build`. Paths of `COPY` are relative to the folder that contains
`docker/`.
"""

import json
import re
import shlex
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from harnessgym.config import nearest
from harnessgym.errors import ImageError
from harnessgym.sandbox import InstallStep
from harnessgym.sandboxes.images.builder import Copied, Layer

REPOSITORY = "harnessgym/"
"""Prefix of our images' names; the recipe's name follows."""
BASE = "base"
"""The recipe that is built from packages instead of another image."""
_CHANGES = {"CMD", "ENTRYPOINT", "ENV", "EXPOSE", "LABEL", "USER", "VOLUME"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build one image."""

    name: str
    parent: str
    """The image it starts from; empty for the base."""
    layers: tuple[Layer, ...]


def folder() -> Path:
    """The folder of the recipes: beside the package in a checkout, else in the environment's data folder.

    Raises ImageError if there is none.
    """
    beside = Path(__file__).resolve().parents[3] / "docker"
    installed = Path(sysconfig.get_path("data")) / "share" / "harnessgym" / "docker"
    for path in (beside, installed):
        if (path / BASE / "recipe.toml").is_file():
            return path
    raise ImageError(
        f"There are no image recipes (looked for {beside} and {installed}). Install harnessgym-rl again."
    )


def names() -> list[str]:
    """The names of all recipes, each after the one it starts from."""
    remaining = sorted(path.parent.name for path in folder().glob("*/Dockerfile"))
    ordered = [BASE]
    while remaining:
        ready = [name for name in remaining if (recipe_name(_parent(name)) or BASE) in ordered]
        if not ready:
            raise ImageError(
                f"Recipes start from each other, or from one that does not exist: {', '.join(remaining)}."
            )
        ordered += ready
        remaining = [name for name in remaining if name not in ready]
    return ordered


def _parent(name: str) -> str:
    """The image a recipe starts from. Does not need the sources that the recipe copies."""
    lines = (folder() / name / "Dockerfile").read_text().splitlines()
    return next((line.split()[1] for line in lines if line.startswith("FROM ")), "")


def recipe_image(name: str) -> str:
    """The name of a recipe's image."""
    return f"{REPOSITORY}{name}"


def recipe_name(image: str) -> str | None:
    """The recipe of an image, such as `python` for `harnessgym/python:latest`; None for other images."""
    name = image.removeprefix(REPOSITORY).removesuffix(":latest")
    known = image.startswith(REPOSITORY) and (name == BASE or (folder() / name / "Dockerfile").is_file())
    return name if known else None


def recipe(name: str) -> Recipe:
    """Reads the Dockerfile of a recipe. Raises ImageError that names the file and line of an error."""
    if not (folder() / name / "Dockerfile").is_file():
        raise ImageError(f"There is no image recipe {name!r} with a Dockerfile. {nearest(name, names())}")
    parent, layers = Dockerfile(folder() / name / "Dockerfile").read()
    return Recipe(name, parent, tuple(layers))


class Dockerfile:
    """Parser for the part of the Dockerfile language that recipes may use."""

    def __init__(self, path: Path) -> None:
        """`path` is `CONTEXT/docker/NAME/Dockerfile`; paths of COPY are relative to `CONTEXT`."""
        self._path = path
        self._context = path.parents[2]
        self._parent, self._cwd, self._layers = "", "/", list[Layer]()

    def read(self) -> tuple[str, list[Layer]]:
        """Returns the parent image and the layers. Raises ImageError that names the file and line."""
        for number, word, rest in instructions(self._path.read_text()):
            if word == "FROM":
                if self._parent or " " in rest:
                    raise self._wrong(number, "a recipe has one FROM, with nothing but an image's name.")
                self._parent = rest
            elif not self._parent:
                raise self._wrong(number, "FROM must come first.")
            else:
                self._layers.append(self._layer(number, word, rest))
        if not self._parent:
            raise ImageError(f"{self._path} has no FROM.")
        return self._parent, self._layers

    def _layer(self, number: int, word: str, rest: str) -> Layer:
        if word == "RUN":
            return Layer(step=InstallStep(self._words(number, rest)))
        if word == "COPY":
            return Layer(copied=self._copied(number, rest))
        if word == "WORKDIR":
            self._cwd = rest
            return Layer(changes=(f"WORKDIR {rest}",))
        if word in _CHANGES:
            return Layer(changes=(f"{word} {rest}",))
        known = " ".join(sorted(_CHANGES))
        raise self._wrong(number, f"recipes cannot say {word}. Known: FROM RUN COPY WORKDIR {known}.")

    def _words(self, number: int, rest: str) -> tuple[str, ...]:
        if not rest.startswith("["):
            return ("sh", "-ec", f"cd {shlex.quote(self._cwd)} && {rest}")
        try:
            return tuple(json.loads(rest))
        except ValueError as error:
            raise self._wrong(number, f"{rest} is no JSON list: {error}.") from error

    def _copied(self, number: int, rest: str) -> Copied:
        *names, to = rest.split()
        sources = tuple(self._context / name for name in names)
        missing = [str(source) for source in sources if not source.exists()]
        if missing or any(name.startswith(("-", "/")) or ".." in name for name in names):
            wrong = ", ".join(missing) or rest
            raise self._wrong(
                number,
                f"cannot copy {wrong}. Sources are files and folders below {self._context}; an image that "
                "copies HarnessGym's sources can only be built in a checkout.",
            )
        inside = to if to.startswith("/") else f"{self._cwd.rstrip('/')}/{to.removeprefix('./')}"
        return Copied(sources, inside)

    def _wrong(self, number: int, what: str) -> ImageError:
        return ImageError(f"{self._path}:{number}: {what}")


def instructions(text: str) -> list[tuple[int, str, str]]:
    """Line number, name and arguments of each instruction, without comments, continued lines joined."""
    entries: list[tuple[int, str, str]] = []
    pending = ""
    began = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not pending):
            continue
        began = began or number
        pending += re.sub(r"\\\s*$", " ", line.strip())
        if not line.rstrip().endswith("\\"):
            word, _, rest = pending.partition(" ")
            entries.append((began, word.upper(), rest.strip()))
            pending = ""
            began = 0
    return entries
