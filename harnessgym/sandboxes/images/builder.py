"""Builds images layer by layer, each layer once: a container runs one step, and its result is committed.

The engine's own builder can only be given the network. Here, the machine's package manager settings are
mounted while a step runs and are gone when it is committed (see `build_network`). A layer is identified by
its content: the image below it and what is done to it. So equal prefixes are built once, even if many
processes ask for them.
"""

import contextlib
import hashlib
import io
import json
import shlex
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harnessgym.errors import ImageError
from harnessgym.sandbox import InstallStep
from harnessgym.sandboxes.images.build_lock import alone, private, use
from harnessgym.sandboxes.images.build_network import INSIDE, Lent, lend
from harnessgym.sandboxes.images.connection import EngineConnection

LABEL = "harnessgym.content"
"""Label that holds an image's content. Every image built here has it."""
LAYERS = "harnessgym/layer"
"""Repository of the layers' tags."""
CONTEXTS = "harnessgym/context"
"""Repository of images that the engine built from a folder with a Dockerfile."""
BUILDING = "harnessgym-build-"
"""Prefix of the names of build containers; the content follows."""
Say = Callable[[str], None]
"""Gets progress messages of one line each."""
_TAIL = 40
_SHOWN = 300
"""Most characters of a step's command in a message."""
_LEAST_FREE = 2 << 30
_LAYERS_AT_MOST = 120


def silent(message: str) -> None:
    """Drops a progress message."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Files and folders to copy into an image, owned by root and readable by everybody."""

    sources: tuple[Path, ...]
    to: str
    """Target path; it ends with a slash if it is a folder."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One change to an image: a step that runs in it, files to copy, or changed settings."""

    step: InstallStep | None = None
    copied: Copied | None = None
    changes: tuple[str, ...] = ()
    """Dockerfile instructions that change settings: ENV, CMD, USER and the like."""

    @property
    def title(self) -> str:
        """A one-line description for messages."""
        if self.step is not None:
            command = shlex.join(self.step.argv)
            return command if len(command) <= _SHOWN else f"{command[:_SHOWN]}..."
        if self.copied is not None:
            return f"COPY {' '.join(path.name for path in self.copied.sources)} {self.copied.to}"
        return "; ".join(self.changes)

    def content(self, parent: str) -> str:
        """The content of this layer on top of the image with the id `parent`."""
        step = [self.step.argv, sorted(self.step.env.items())] if self.step is not None else None
        copied = [self.copied.to, _digest(self.copied)] if self.copied is not None else None
        return content_of([parent, step, copied, self.changes])


def content_of(facts: object) -> str:
    """A collision-resistant hash of JSON values."""
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


class Builder:
    """Builds on one engine."""

    def __init__(self, engine: EngineConnection, *, say: Say = silent, timeout_s: float = 3_600.0) -> None:
        """`timeout_s` limits each layer."""
        self.engine = engine
        self.say = say
        self.timeout_s = timeout_s

    def build(self, parent: str, layers: Sequence[Layer]) -> str:
        """Builds all layers on top of the image `parent` and returns the tag of the result.

        Raises ImageError that names the failed layer.
        """
        image = self.engine.image(parent)
        if image is None:
            raise ImageError(
                f"The engine has no image {parent!r}. Build or load it: harnessgym images list shows what is "
                "there."
            )
        tag = parent
        for layer in layers:
            content = layer.content(image.id)
            tag = f"{LAYERS}:{content}"
            image = self.once(content, partial(self._add, image, layer, content))
        return tag

    def once(self, content: str, make: Callable[[], None], repository: str = LAYERS) -> Any:
        """Returns the image of a content.

        If it does not exist, one process calls `make`, which must build and tag it.
        """
        tag = f"{repository}:{content}"
        image = self.engine.image(tag)
        if image is None:
            with alone(content, self.say), self.engine.answering(f"make {tag}"):
                # Another process may have built it while this one waited for the lock.
                image = self.engine.image(tag)
                if image is None:
                    self._room()
                    make()
                    image = self.engine.image(tag)
        if image is None:
            raise ImageError(
                f"The image {tag} was built and is gone again. Another process may have removed it."
            )
        use(content)
        return image

    def _room(self) -> None:
        where = self.engine.storage()
        if where is not None and (free := shutil.disk_usage(where).free) < _LEAST_FREE:
            raise ImageError(
                f"The disk that holds the engine's images ({where}) has {free:,} bytes free; a build wants "
                f"{_LEAST_FREE:,}. Free some: harnessgym images gc removes what has not been used for long."
            )

    def _add(self, below: Any, layer: Layer, content: str) -> None:
        if len(below.attrs["RootFS"].get("Layers") or ()) >= _LAYERS_AT_MOST:
            raise ImageError(
                f"{below.id} has {_LAYERS_AT_MOST} layers, the engine's most. Put several commands into one "
                "step."
            )
        self.say(layer.title)
        began = time.monotonic()
        settings: dict[str, Any] = {"name": f"{BUILDING}{content}", "network_mode": "host"}
        if layer.step is None:
            with self._container(below, settings) as container:
                if layer.copied is not None:
                    container.put_archive("/", _archive(layer.copied))
                _commit(container, layer, content, layer.changes)
        elif not self.engine.local:
            raise ImageError(
                "Images are built on the machine of the Docker engine, whose package managers' settings "
                "are lent to the build: run `harnessgym images build` there, or set DOCKER_HOST to a "
                "socket of this machine."
            )
        else:
            with private(content) as folder:
                lent = lend(folder)
                lent.script(layer.step)
                with self._container(below, settings | _borrowing(below, lent)) as container:
                    container.start()
                    self._wait(container, layer)
                    _commit(container, layer, content, (*_restoring(below), *layer.changes))
        self.say(f"{layer.title}: {time.monotonic() - began:.1f} s")

    @contextmanager
    def _container(self, below: Any, settings: dict[str, Any]) -> Iterator[Any]:
        """Creates a container and removes it afterwards. Removes one that a killed builder left first."""
        self.engine.remove_container(settings["name"])
        command = settings.pop("command", None) or below.attrs["Config"].get("Cmd") or ["/bin/sh"]
        try:
            yield self.engine.client.containers.create(below.id, command, **settings)
        finally:
            self.engine.remove_container(settings["name"])

    def _wait(self, container: Any, layer: Layer) -> None:
        deadline = time.monotonic() + self.timeout_s
        pause = 0.02
        last = b""
        while True:
            container.reload()
            if container.status in ("exited", "dead"):
                break
            if time.monotonic() > deadline:
                container.kill()
                raise ImageError(
                    f"{layer.title} did not end within {self.timeout_s:g} s.{_output_tail(container)}"
                )
            line = container.logs(tail=1).strip()
            if line != last:
                last = line
                self.say(line.decode(errors="replace"))
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)
        code = container.attrs["State"]["ExitCode"]
        if code:
            memory = " It ran out of memory." if container.attrs["State"]["OOMKilled"] else ""
            raise ImageError(f"{layer.title} exited with {code}.{memory}{_output_tail(container)}")


def _borrowing(below: Any, lent: Lent) -> dict[str, Any]:
    """Settings of a container that runs the script in `lent` instead of the image's command."""
    words = ["/bin/sh", f"{INSIDE}/run"]
    from docker.types import LogConfig, Mount

    mounts = [Mount(INSIDE, str(lent.folder), "bind", read_only=True)]
    mounts += [Mount(f"{INSIDE}/scratch", str(lent.folder / "scratch"), "bind")]
    mounts += [Mount(inside, path, "bind", read_only=True) for path, inside in lent.mounts.items()]
    log = LogConfig(type="json-file", config={"max-size": "4m", "max-file": "2"})
    # An image's entrypoint is only replaced if it has one: the commit would keep a new one.
    how = (
        {"entrypoint": words[:1], "command": words[1:]}
        if below.attrs["Config"].get("Entrypoint")
        else {"command": words}
    )
    return {**how, "user": "0:0", "working_dir": "/", "mounts": mounts, "log_config": log}


def _restoring(below: Any) -> tuple[str, ...]:
    """Dockerfile instructions that restore the image's settings.

    A commit would otherwise keep the build container's user, folder and command.
    """
    config = below.attrs["Config"]
    entrypoint = [f"ENTRYPOINT {json.dumps(config['Entrypoint'])}"] if config.get("Entrypoint") else []
    command = f"CMD {json.dumps(config.get('Cmd') or ['/bin/sh'])}"
    return (
        f"USER {config.get('User') or '0:0'}",
        f"WORKDIR {config.get('WorkingDir') or '/'}",
        *entrypoint,
        command,
    )


def _commit(container: Any, layer: Layer, content: str, changes: Sequence[str]) -> None:
    labelled = [*changes, f"LABEL {LABEL}={content}"]
    container.commit(LAYERS, content, message=layer.title[:500], changes=labelled)


def _output_tail(container: Any) -> str:
    output = container.logs(tail=_TAIL).decode(errors="replace").strip()
    return f" The end of its output:\n{output}" if output else " It printed nothing."


def _files(copied: Copied) -> Iterator[tuple[Path, str]]:
    """Yields the files to copy and their targets, in a fixed order."""
    for source in copied.sources:
        if source.is_file():
            yield source, copied.to + source.name if copied.to.endswith("/") else copied.to
        for path in sorted(source.rglob("*")):
            inner = path.relative_to(source)
            if path.is_file() and "__pycache__" not in inner.parts:
                yield path, f"{copied.to.rstrip('/')}/{inner}"


def _digest(copied: Copied) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path, to in _files(copied):
        data = path.read_bytes()
        digest.update(f"{to}\0{_mode(path)}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def _mode(path: Path) -> int:
    return 0o755 if path.stat().st_mode & 0o100 else 0o644


def _archive(copied: Copied) -> bytes:
    buffer = io.BytesIO()
    with contextlib.closing(tarfile.open(fileobj=buffer, mode="w")) as archive:
        for path, to in _files(copied):
            data = path.read_bytes()
            entry = tarfile.TarInfo(to.lstrip("/"))
            entry.size, entry.mode = len(data), _mode(path)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
