"""A bubblewrap sandbox, and a proxy's socket that answers with as many bytes as it is asked for."""

import asyncio

import pytest

from harnessgym.faults.fault import FaultsSection
from harnessgym.faults.plan import FaultPlan
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.images.layers import ensure
from harnessgym.task import Limits


@pytest.fixture
async def backend(tmp_path, anyio_backend):
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w")) as opened:
        yield opened


@pytest.fixture
async def sandbox(backend):
    async with backend.open(Limits(wall_s=20)) as opened:
        yield opened


@pytest.fixture
async def docker_sandbox(tmp_path, anyio_backend):
    ensure(DockerSettings().image, ())
    async with (
        Docker(DockerSettings(workspace_root=tmp_path / "w")) as opened,
        opened.open(Limits(wall_s=20)) as sandbox,
    ):
        yield sandbox


@pytest.fixture
async def proxy_socket(tmp_path, anyio_backend):
    async def answer(reader, writer):
        try:
            while line := await reader.readline():
                writer.write(b"x" * int(line) + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "proxy.sock")
    yield tmp_path / "proxy.sock"
    server.close()
    await asyncio.sleep(0.01)


@pytest.fixture
def plan():
    """A plan of these faults."""

    def make(*inject, seed=1, rollout_seed=1):
        return FaultPlan(FaultsSection.model_validate({"seed": seed, "inject": inject}), rollout_seed)

    return make
