"""The Docker engine as builds see it: a synchronous client and the few questions they ask."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from harnessgym.errors import ImageError
from harnessgym.sandboxes.engine import address, sdk

_TIMEOUT_S = 600
"""For one request; committing a large layer takes long."""


class EngineConnection:
    """To one engine, for one thread."""

    def __init__(self, host: str = "") -> None:
        """`host` is a URL such as `unix:///run/docker.sock`; by default `DOCKER_HOST`, else the usual
        socket.
        """
        errors = sdk().errors
        url = address(host)
        from requests import RequestException

        self.local = url.startswith("unix:")
        """Whether the engine runs on this machine, so that it can mount this machine's files."""
        try:
            self.client: Any = sdk().DockerClient(base_url=url, version="auto", timeout=_TIMEOUT_S)
        except errors.DockerException as error:
            raise ImageError(
                f"No Docker engine answers at {url}: {error}. Start one, or say where it is: DOCKER_HOST=..."
            ) from error
        self._missing = errors.NotFound
        self._refused = errors.APIError
        self._failures = (errors.DockerException, RequestException)

    @contextmanager
    def answering(self, doing: str) -> Iterator[None]:
        """What the engine says or does wrong meanwhile is an ImageError that says what was being done."""
        try:
            yield
        except self._failures as error:
            raise ImageError(f"The Docker engine failed while it was to {doing}: {error}") from error

    def image(self, name: str) -> Any | None:
        """The image of that name or id, if it is there."""
        try:
            return self.client.images.get(name)
        except self._missing:
            return None

    def remove_container(self, name: str) -> None:
        """Removes it with its anonymous volumes, running or not; nothing if there is none."""
        try:
            self.client.containers.get(name).remove(force=True, v=True)
        except self._missing:
            return

    def remove_image(self, name: str, *, below: bool = False) -> bool:
        """Removes a tag, and the image if that was its last; False if something needs the image.

        What is below it stays, or with `below` goes too as far as it has no name and nothing else stands on
        it.
        """
        try:
            self.client.images.remove(name, noprune=not below)
        except self._missing:
            return True
        except self._refused as error:
            if error.status_code == 409:
                return False
            raise ImageError(f"The engine did not remove {name}: {error.explanation}") from error
        return True

    def storage(self) -> Path | None:
        """The folder of this machine that holds the engine's data; None where that cannot be told."""
        folder = Path(self.client.info().get("DockerRootDir") or os.devnull)
        return folder if self.local and folder.is_dir() else None

    def close(self) -> None:
        """Closes the connection."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
