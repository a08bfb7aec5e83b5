"""Images that the engine builds from a folder with a Dockerfile, as people have them: `docker build FOLDER`,
once per content.

The content is what the engine is sent, and the images that the Dockerfile starts from. The engine's builder
is lent the network of this machine and the names of its proxies, not its package managers' settings: those
would stay in the image.
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
"""Lines of a failed build's output that its error keeps."""
_NOTHING = "scratch"
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")


def context_of(image: str) -> Path | None:
    """The folder that an image is built from, if its name says `context:FOLDER`."""
    return Path(image.removeprefix(CONTEXT)) if image.startswith(CONTEXT) else None


def build_context(folder: Path, builder: Builder) -> str:
    """The name of the image that `folder` makes, `harnessgym/context:HASH`, built if it is not there.

    The builder's time limit is for the whole build. Raises ImageError naming the folder, with the tail of the
    build's output or the image that it starts from and that is not to be had.
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
    """The images that a Dockerfile's text starts from or copies from, in its order, each once.

    Left out are its own stages and names that hang on a build argument without a default.
    """
    given = dict[str, str]()
    stages = set[str]()
    found = list[str]()
    for _, word, rest in instructions(dockerfile):
        words = [each for each in rest.split() if not each.startswith("--")]
        if word == "ARG" and not stages and not found:
            name, _, default = rest.partition("=")
            given[name.strip()] = default.strip().strip("\"'")
        elif word == "FROM" and words:
            found.append(_filled(words[0], given, stages))
            stages.update(each.lower() for each in words[2:3])
        elif word == "COPY":
            sources = re.findall(r"--from=(\S+)", rest)
            found += [_filled(each, {}, stages) for each in sources if not each.isdigit()]
    return [image for image in dict.fromkeys(found) if image and image != _NOTHING]


def _filled(image: str, given: dict[str, str], stages: set[str]) -> str:
    """An image's name with build arguments put in; empty for a stage, or if one of them has no value."""
    values = [given.get(one or other) or default for one, other, default in _VARIABLE.findall(image)]
    if image.lower() in stages or not all(values):
        return ""
    rest = iter(values)
    return _VARIABLE.sub(lambda _: next(rest), image)


def _present(image: str, folder: Path, builder: Builder) -> str:
    """The id of an image that a Dockerfile starts from; ours is built, another's pulled, if it is not
    there.
    """
    if (ours := recipe_name(image)) is not None:
        build(ours, builder)
    found = builder.engine.image(image)
    if found is None:
        builder.say(f"pull {image}")
        try:
            found = builder.engine.client.images.pull(image)
        except sdk().errors.APIError as error:
            raise ImageError(
                f"{folder / _DOCKERFILE} starts from the image {image!r}, which is not on the Docker engine "
                "and could not be "
                f"pulled: {error.explanation or error}. Load it, or start from another image."
            ) from error
    return str(found.id)


def _build(folder: Path, content: str, builder: Builder) -> None:
    from urllib3.exceptions import TimeoutError as Late

    said: deque[str] = deque(maxlen=_TAIL)
    try:
        with _answer(builder.engine.client.api) as answered:
            for line in _output(folder, content, builder, answered):
                said.append(line)
                builder.say(line)
    except _Failure as error:
        raise _failed(folder, f"failed: {error}", said) from error
    except sdk().errors.APIError as error:
        raise _failed(folder, f"was refused: {error.explanation or error}", said) from error
    except (Late, TimeoutError) as error:
        raise _failed(folder, f"did not end within {builder.timeout_s:g} s", said) from error


class _Failure(Exception):
    """What the engine says of a build that failed."""


def _output(folder: Path, content: str, builder: Builder, answered: list[Any]) -> Iterator[str]:
    """The build's output by lines. Raises `_Failure` at its end, TimeoutError and urllib3's when it takes
    too long.
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
        if (
            answered
            and (connection := answered[-1].raw.connection) is not None
            and connection.sock is not None
        ):
            connection.sock.settimeout(left)  # silence is bounded by what is left
    if wrong:
        raise _Failure(wrong)


@contextmanager
def _answer(session: Any) -> Iterator[list[Any]]:
    """The answers to what is asked meanwhile, closed afterwards: on a closed one, the engine ends the
    build.
    """
    found: list[Any] = []

    def note(response: Any, **_: object) -> None:
        found.append(response)

    session.hooks["response"].append(note)
    try:
        yield found
    finally:
        session.hooks["response"].remove(note)
        for response in found:
            response.close()


def _failed(folder: Path, how: str, said: deque[str]) -> ImageError:
    tail = "\n".join(said)
    return ImageError(
        f"The image of {folder} could not be built: the build {how}. Its last words:\n{tail or '(none)'}"
    )


def _digest(folder: Path) -> str:
    """Of all that the engine is sent: names, modes, links and content. Raises OSError."""
    from docker.utils.build import exclude_paths

    ignored = folder / ".dockerignore"
    lines = (line.strip() for line in ignored.read_text().splitlines()) if ignored.is_file() else ()
    patterns = [line for line in lines if line and not line.startswith("#")]
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(exclude_paths(str(folder), patterns, dockerfile=_DOCKERFILE)):
        path = folder / name
        status = path.lstat()
        link = os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found.update(f"{name}\0{status.st_mode}\0{link}\0{len(data)}\0".encode(errors="surrogateescape"))
        found.update(data)
    return found.hexdigest()
