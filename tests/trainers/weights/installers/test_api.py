"""How long an engine may take for what: loading weights is slow, questions and switches are not."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from harnessgym.errors import UpstreamSilent
from tests.trainers.weights.serving import running
from trainers.weights.installers.api import QUICK_S, EngineApi
from trainers.weights.installers.sglang import SglangInstaller
from trainers.weights.installers.vllm import VllmInstaller


class Timed(EngineApi):
    """Writes down how long each request may take."""

    async def ask(self, method, path, *args, timeout_s=None, **options):
        self.limits = [*getattr(self, "limits", []), timeout_s]
        return await super().ask(method, path, *args, timeout_s=timeout_s, **options)


async def answer(request):
    if request.url.path == "/slow":
        await asyncio.sleep(2)
    return JSONResponse({"weight_version": "default", "model_path": "/m"})


@pytest.fixture
def address():
    with running(Starlette(routes=[Route("/{path}", answer, methods=["GET", "POST"])])) as server:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


def test_a_request_may_have_a_shorter_limit_than_the_others(address):
    async def work():
        async with EngineApi(address, timeout_s=600) as api:
            await api.ask("GET", "/slow", timeout_s=0.2)

    began = time.monotonic()
    with pytest.raises(UpstreamSilent, match="accepted GET /slow and has sent nothing"):
        asyncio.run(work())
    assert time.monotonic() - began < 1.9


@pytest.mark.parametrize("kind", [VllmInstaller, SglangInstaller])
def test_an_engine_that_hangs_is_noticed_long_before_weights_would_be_loaded(address, kind):
    async def work():
        async with Timed(address, timeout_s=600) as api:
            installer = kind(api, "p", Path("/nowhere"))
            await installer.look()
            await installer.pause()
            await installer.resume()
            return api.limits

    assert asyncio.run(work()) == [QUICK_S] * 3


def test_an_engine_that_works_long_is_waited_for_as_long_as_it_answers_questions(address):
    async def work():
        async with EngineApi(address, timeout_s=600, quick_s=0.3) as api:
            return await api.ask("POST", "/slow")

    assert asyncio.run(work())["weight_version"] == "default"


def test_an_engine_that_is_stopped_while_it_loads_weights_is_noticed_long_before_the_longest_limit():
    program = "import socket, time\ns = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\n"
    with subprocess.Popen(
        [sys.executable, "-c", f"{program}time.sleep(600)"], stdout=subprocess.PIPE
    ) as process:
        address = f"http://127.0.0.1:{int(process.stdout.readline())}"

        async def work():
            async with EngineApi(address, timeout_s=600, quick_s=0.5) as api:
                await api.ask("POST", "/load")

        began = time.monotonic()
        with pytest.raises(
            UpstreamSilent, match=r"answered neither POST /load nor GET /health, asked 0\.5 s ago"
        ):
            asyncio.run(work())
        assert time.monotonic() - began < 30
        process.kill()
