"""Backends to grade on, and the way from what an agent left to a grade."""

import functools
from contextlib import asynccontextmanager

import pytest

from harnessgym.grading.grade import judge
from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.images.layers import ensure
from harnessgym.task import Limits, Task

LIMITS = Limits(wall_s=30.0, memory_mb=512, processes=64, disk_mb=64)


@functools.cache
def python_image():
    """The default image of the docker backend, built if need be."""
    return ensure(DockerSettings().image, ())


@asynccontextmanager
async def opened(kind, folder):
    if kind == "bubblewrap":
        backend = Bubblewrap(BubblewrapSettings(workspace_root=folder))
    else:
        python_image()
        backend = Docker(DockerSettings(workspace_root=folder))
    async with backend:
        yield backend


KINDS = [
    pytest.param("bubblewrap", marks=pytest.mark.bubblewrap, id="bubblewrap"),
    pytest.param("docker", marks=pytest.mark.docker, id="docker"),
]


@pytest.fixture(scope="module", params=KINDS)
async def backend(request, tmp_path_factory, anyio_backend):
    async with opened(request.param, tmp_path_factory.mktemp("w")) as backend:
        yield backend


@pytest.fixture(scope="module")
async def bubblewrap(tmp_path_factory, anyio_backend):
    async with opened("bubblewrap", tmp_path_factory.mktemp("w")) as backend:
        yield backend


@pytest.fixture(scope="module")
async def docker(tmp_path_factory, anyio_backend):
    async with opened("docker", tmp_path_factory.mktemp("w")) as backend:
        yield backend


@pytest.fixture
def make_task():
    """A task whose tests are `checks`."""

    def make(*checks, test_files=None, **fields):
        metadata = {"tests": checks, "test_files": test_files or {}, "score": fields.pop("score", "all")}
        return Task("t", "do it", **{"limits": LIMITS, "grader": "checks", "metadata": metadata, **fields})

    return make


@pytest.fixture
def grade():
    """Lays files, runs what the agent runs, and judges."""

    async def go(backend, task, files=None, run=()):
        bare = Equipment(image=task.image or "", proxy=False)
        async with backend.open(task.limits) as sandbox:
            for path, data in (files or {}).items():
                await sandbox.write(path, data if isinstance(data, bytes) else data.encode())
            for command in run:
                await sandbox.exec(["sh", "-c", command], timeout_s=60)
            return await judge(task, sandbox, lambda: backend.open(task.limits, bare))

    return go
