"""Builds images from a folder with a Dockerfile, like `docker build FOLDER`, once per content.

The content is everything that is sent to the engine, and the images that the Dockerfile starts from. The
build gets this machine's network and the names of its proxies. It does not get the package managers'
settings, because they would stay in the image.
"""

import hashlib
import os
import re
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harnessgym.errors import ImageError
from harnessgym.sandbox import CONTEXT
from harnessgym.sandboxes.engine import sdk
from harnessgym.sandboxes.images.build import build
from harnessgym.sandboxes.images.build_network import proxies
from harnessgym.sandboxes.images.builder import CONTEXTS, LABEL, Builder, content_of
from harnessgym.sandboxes.images.recipes import instructions, recipe_name

_DOCKERFILE = "Dockerfile"
_TAIL = 40
"""Lines of a failed build's output that its error shows."""
_NOTHING = "scratch"
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")


def context_of(image: str) -> Path | None:
    """The folder in an image name of the form `context:FOLDER`; None for other names."""
    return Path(image.removeprefix(CONTEXT)) if image.startswith(CONTEXT) else None


def build_context(folder: Path, builder: Builder) -> str:
    """Builds the image of `folder` unless it exists. Returns its name, `harnessgym/context:HASH`.

    The builder's timeout limits the whole build. Raises ImageError that names the folder, with the tail of
    the build's output, or the parent image that cannot be found or pulled.
    """
    if not (folder / _DOCKERFILE).is_file():
        raise ImageError(f"There is no {folder / _DOCKERFILE} to build an image from.")
    text = (folder / _DOCKERFILE).read_text(errors="replace")
    with builder.engine.answering(f"look at what {folder / _DOCKERFILE} starts from"):
        parents = [_present(image, folder, builder) for image in starting_images(text)]
    try:
        content = content_of(["context", parents, _digest(folder)])
    except OSError as error:
        raise ImageError(f"The folder {folder} cannot be read to build an image from it: {error}.") from error
    builder.once(content, lambda: _build(folder, content, builder), CONTEXTS)
    return f"{CONTEXTS}:{content}"


def starting_images(dockerfile: str) -> list[str]:
    """The images that a Dockerfile's text starts from or copies from, in order, without duplicates.

    Leaves out its own stages and names that use a build argument without a default.
    """
    # Only an ARG before the first FROM counts in a FROM, as in the engine.
    defaults = dict[str, str]()
    stages = set[str]()
    images = list[str]()
    for _, word, rest in instructions(dockerfile):
        words = [each for each in rest.split() if not each.startswith("--")]
        if word == "ARG" and not stages and not images:
            name, _, default = rest.partition("=")
            defaults[name.strip()] = default.strip().strip("\"'")
        elif word == "FROM" and words:
            images.append(_filled(words[0], defaults, stages))
            stages.update(each.lower() for each in words[2:3])
        elif word == "COPY":
            sources = re.findall(r"--from=(\S+)", rest)
            images += [_filled(each, {}, stages) for each in sources if not each.isdigit()]
    return [image for image in dict.fromkeys(images) if image and image != _NOTHING]


def _filled(image: str, arguments: dict[str, str], stages: set[str]) -> str:
    """Fills build arguments into an image's name. Empty for a stage, or if an argument has no value."""
    values = [arguments.get(one or other) or default for one, other, default in _VARIABLE.findall(image)]
    if image.lower() in stages or not all(values):
        return ""
    rest = iter(values)
    return _VARIABLE.sub(lambda _: next(rest), image)


def _present(image: str, folder: Path, builder: Builder) -> str:
    """The id of an image that a Dockerfile starts from. If it is missing, builds ours and pulls others."""
    if (ours := recipe_name(image)) is not None:
        build(ours, builder)
    engine_image = builder.engine.image(image)
    if engine_image is None:
        builder.say(f"pull {image}")
        try:
            engine_image = builder.engine.client.images.pull(image)
        except sdk().errors.APIError as error:
            raise ImageError(
                f"{folder / _DOCKERFILE} starts from the image {image!r}, which is not on the Docker "
                f"engine and could not be pulled: {error.explanation or error}. Load it, or start from "
                "another image."
            ) from error
    return str(engine_image.id)


def _build(folder: Path, content: str, builder: Builder) -> None:
    from urllib3.exceptions import TimeoutError as Late

    last_lines: deque[str] = deque(maxlen=_TAIL)
    try:
        with _answer(builder.engine.client.api) as answered:
            for line in _output(folder, content, builder, answered):
                last_lines.append(line)
                builder.say(line)
    except _Failure as error:
        raise _failed(folder, f"failed: {error}", last_lines) from error
    except sdk().errors.APIError as error:
        raise _failed(folder, f"was refused: {error.explanation or error}", last_lines) from error
    except (Late, TimeoutError) as error:
        raise _failed(folder, f"did not end within {builder.timeout_s:g} s", last_lines) from error


class _Failure(Exception):
    """The engine's error for a failed build."""


def _output(folder: Path, content: str, builder: Builder, answered: list[Any]) -> Iterator[str]:
    """Yields the lines of the build's output. Raises `_Failure` at the end if the build failed.

    Raises TimeoutError or urllib3's if it takes too long.
    """
    deadline = time.monotonic() + builder.timeout_s
    events = builder.engine.client.api.build(
        path=str(folder),
        tag=f"{CONTEXTS}:{content}",
        labels={LABEL: content},
        buildargs=proxies(),
        network_mode="host",
        rm=True,
        forcerm=True,
        timeout=builder.timeout_s,
        decode=True,
    )
    wrong = ""
    for event in events:
        wrong = str(event.get("error", "")).strip() or wrong
        yield from str(event.get("stream", "")).strip().splitlines()
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        # A request timeout only limits the silence between two events. Shorten it to what is left of the
        # build's time.
        if (
            answered
            and (connection := answered[-1].raw.connection) is not None
            and connection.sock is not None
        ):
            connection.sock.settimeout(left)
    if wrong:
        raise _Failure(wrong)


@contextmanager
def _answer(session: Any) -> Iterator[list[Any]]:
    """Collects the responses to requests made meanwhile and closes them afterwards.

    The engine ends a build whose response is closed.
    """
    responses: list[Any] = []

    def note(response: Any, **_: object) -> None:
        responses.append(response)

    session.hooks["response"].append(note)
    try:
        yield responses
    finally:
        session.hooks["response"].remove(note)
        for response in responses:
            response.close()


def _failed(folder: Path, how: str, lines: deque[str]) -> ImageError:
    tail = "\n".join(lines)
    return ImageError(
        f"The image of {folder} could not be built: the build {how}. The end of its "
        f"output:\n{tail or '(none)'}"
    )


def _digest(folder: Path) -> str:
    """Hashes everything that is sent to the engine: names, modes, links and content. Raises OSError."""
    from docker.utils.build import exclude_paths

    ignored = folder / ".dockerignore"
    lines = (line.strip() for line in ignored.read_text().splitlines()) if ignored.is_file() else ()
    patterns = [line for line in lines if line and not line.startswith("#")]
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(exclude_paths(str(folder), patterns, dockerfile=_DOCKERFILE)):
        path = folder / name
        status = path.lstat()
        link = os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        digest.update(f"{name}\0{status.st_mode}\0{link}\0{len(data)}\0".encode(errors="surrogateescape"))
        digest.update(data)
    return digest.hexdigest()
