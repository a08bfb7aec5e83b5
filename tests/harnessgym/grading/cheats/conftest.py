"""Suites over real sandboxes."""

from contextlib import asynccontextmanager

import pytest

from harnessgym.grading.cheats.suite import suite
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.images.layers import ensure


@pytest.fixture
def open_suite(tmp_path):
    """Opens a suite over one kind of sandbox."""

    @asynccontextmanager
    async def opened(kind):
        folder = tmp_path / "w"
        if kind == "docker":
            ensure(DockerSettings().image, ())
            backend = Docker(DockerSettings(workspace_root=folder))
        else:
            backend = Bubblewrap(BubblewrapSettings(workspace_root=folder))
        async with backend, suite(backend) as running:
            yield running

    return opened
