"""Suites over real sandboxes, one of each kind for a file: a suite keeps nothing from one cheat to the next."""

import pytest

from harnessgym.grading.cheats.suite import suite
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.images.layers import ensure


@pytest.fixture(scope="module")
async def bubblewrap_suite(tmp_path_factory, anyio_backend):
    backend = Bubblewrap(BubblewrapSettings(workspace_root=tmp_path_factory.mktemp("w")))
    async with backend, suite(backend) as running:
        yield running


@pytest.fixture(scope="module")
async def docker_suite(tmp_path_factory, anyio_backend):
    ensure(DockerSettings().image, ())
    backend = Docker(DockerSettings(workspace_root=tmp_path_factory.mktemp("w")))
    async with backend, suite(backend) as running:
        yield running
