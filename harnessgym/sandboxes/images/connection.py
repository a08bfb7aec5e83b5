"""A synchronous connection to the Docker engine with the few calls that builds need."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from harnessgym.errors import ImageError
from harnessgym.sandboxes.engine import address, sdk

_TIMEOUT_S = 600
"""Timeout of one request. Committing a large layer takes long."""


class EngineConnection:
    """A connection to one engine, for use by one thread."""

    def __init__(self, host: str = "") -> None:
        """Connects to `host`, a URL such as `unix:///run/docker.sock`; empty: `DOCKER_HOST` or the default.

        Raises ImageError if no engine answers.
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
        """Turns the engine's errors into an ImageError that says what was being done."""
        try:
            yield
        except self._failures as error:
            raise ImageError(f"The Docker engine failed while it was to {doing}: {error}") from error

    def image(self, name: str) -> Any | None:
        """The image of that name or id; None if there is none."""
        try:
            return self.client.images.get(name)
        except self._missing:
            return None

    def images(self, label: str) -> list[Any]:
        """All images with `label` (`name` or `name=value`), those without a name too."""
        # The SDK's own list fails if an image goes between the engine's answer and the look at that image.
        listed = self.client.api.images(all=True, filters={"label": label})
        return [image for one in listed if (image := self.image(one["Id"])) is not None]

    def remove_container(self, name: str) -> None:
        """Removes a container and its anonymous volumes, running or not. Does nothing if there is none."""
        try:
            self.client.containers.get(name).remove(force=True, v=True)
        except self._missing:
            return

    def remove_image(self, name: str, *, below: bool = False) -> bool:
        """Removes a tag, and the image if that was its last tag. Returns False if the image is in use.

        With `below`, also removes the images below it that have no name and no other image above them.
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
        """The folder on this machine with the engine's data; None if unknown or on another machine."""
        folder = Path(self.client.info().get("DockerRootDir") or os.devnull)
        return folder if self.local and folder.is_dir() else None

    def close(self) -> None:
        """Closes the connection."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
