"""A stub proxy that answers as two providers do, and every sandbox backend that can be used here."""

import asyncio
import functools
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.images.layers import ensure
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings


@dataclass
class StubProxy:
    """Serves one answer per path prefix; `/barrier/N` answers once N requests wait there."""

    folder: object
    url: str = ""
    requests: list = field(default_factory=list)
    waiting: list = field(default_factory=list)
    connections: set = field(default_factory=set)

    async def serve(self, reader, writer):
        self.connections.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                path = line.split(" ")[1]
                self.requests.append((path, headers, body))
                if path.startswith("/barrier/"):
                    await self.barrier(int(path.rsplit("/", 1)[1]))
                data = json.dumps(answer(path)).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    % len(data)
                    + data
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections.discard(writer)
            writer.close()

    async def barrier(self, parties):
        mine = asyncio.get_running_loop().create_future()
        self.waiting.append(mine)
        if len(self.waiting) == parties:
            for each in self.waiting:
                each.set_result(None)
            self.waiting.clear()
        await mine


def answer(path):
    if path.startswith("/v1/chat"):
        choice = {"index": 0, "message": {"role": "assistant", "content": "done"}, "finish_reason": "stop"}
        return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    if path.startswith("/v1/messages"):
        usage = {"input_tokens": 1, "output_tokens": 1}
        content = [{"type": "text", "text": "done"}]
        message = {"id": "1", "type": "message", "role": "assistant", "model": "m", "content": content}
        return {**message, "stop_reason": "end_turn", "usage": usage}
    return {"path": path}


@asynccontextmanager
async def listening(stub):
    tcp = await asyncio.start_server(stub.serve, "127.0.0.1", 0)
    local = await asyncio.start_unix_server(stub.serve, stub.folder / "proxy.sock")
    stub.url = f"http://127.0.0.1:{tcp.sockets[0].getsockname()[1]}"
    try:
        yield stub
    finally:
        for server in (tcp, local):
            server.close()
        for writer in list(stub.connections):
            writer.close()
        for server in (tcp, local):
            await server.wait_closed()
        await asyncio.sleep(0)


@pytest.fixture
async def stub(tmp_path, anyio_backend):
    folder = tmp_path / "proxy"
    folder.mkdir()
    async with listening(StubProxy(folder)) as served:
        yield served


def make_bubblewrap(stub, tmp_path, **settings):
    return Bubblewrap(
        BubblewrapSettings(proxy_socket_dir=stub.folder, workspace_root=tmp_path / "w", **settings)
    )


def make_process(stub, tmp_path, **settings):
    return ProcessBackend(ProcessSettings(proxy_url=stub.url, workspace_root=tmp_path / "w", **settings))


def make_docker(stub, tmp_path, **settings):
    return Docker(DockerSettings(proxy_socket_dir=stub.folder, workspace_root=tmp_path / "w", **settings))


@functools.cache
def python_image():
    """The default image of the docker backend, built if need be: minutes on a new machine, then
    milliseconds.
    """
    return ensure(DockerSettings().image, ())


MAKERS = {
    "process": pytest.param(make_process, id="process"),
    "bubblewrap": pytest.param(make_bubblewrap, id="bubblewrap", marks=pytest.mark.bubblewrap),
    "docker": pytest.param(make_docker, id="docker", marks=pytest.mark.docker),
}


def pytest_generate_tests(metafunc):
    """Tests that ask for `make_backend` run over every backend, or those that their module names in
    `BACKENDS`.
    """
    if "make_backend" in metafunc.fixturenames:
        names = getattr(metafunc.module, "BACKENDS", tuple(MAKERS))
        metafunc.parametrize("make_backend", [MAKERS[name] for name in names], indirect=True)


@pytest.fixture
def make_backend(request, stub, tmp_path):
    """Builds a backend of each kind, with settings."""
    if request.param is make_docker:
        python_image()
    return lambda **settings: request.param(stub, tmp_path, **settings)


@pytest.fixture
async def backend(make_backend):
    async with make_backend() as opened:
        yield opened


@pytest.fixture
async def bubblewrap(stub, tmp_path, anyio_backend):
    async with make_bubblewrap(stub, tmp_path) as opened:
        yield opened


@pytest.fixture
async def docker(stub, tmp_path, anyio_backend):
    """Without spares: every container belongs to a sandbox that was opened."""
    python_image()
    async with make_docker(stub, tmp_path, spares=0) as opened:
        yield opened


@pytest.fixture
def program(tmp_path):
    """Writes a harness program and returns its path."""

    def write(text, name="program.py"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write
