"""The SGLang installer against the documented request shapes; SGLang itself was not run.

Shapes: SGLang's docs/advanced_features/sglang_for_rl.md (`/update_weights_from_disk`, `/pause_generation`,
`/continue_generation`), python/sglang/srt/managers/io_struct.py (`UpdateWeightVersionReqInput`) and
srt/entrypoints/http_server.py (`/model_info`; `/flush_cache`, which answers text; status 400 with JSON for a
refused update).
"""

import asyncio
import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from harnessgym.errors import PolicyError, UpstreamError, UpstreamLost
from harnessgym.store.policies import PolicyVersion
from tests.trainers.weights.serving import running
from trainers.weights.installers.api import EngineApi
from trainers.weights.installers.sglang import SglangInstaller

WEIGHTS = {"w": torch.zeros(2)}


class Sglang:
    """Answers as documented, and writes down what it is asked."""

    def __init__(self):
        self.log, self.label, self.path = [], "default", "/models/start"
        self.refused, self.logprob, self.checked = set(), -1.5, None

    def app(self):
        posts = {
            "/pause_generation": self.plain,
            "/continue_generation": self.plain,
            "/flush_cache": self.flush,
            "/update_weights_from_disk": self.update,
            "/update_weight_version": self.relabel,
            "/generate": self.generate,
        }
        routes = [Route(path, answer, methods=["POST"]) for path, answer in posts.items()]
        return Starlette(routes=[Route("/model_info", self.info), *routes])

    async def read(self, request):
        body = await request.json() if await request.body() else None
        self.log.append((request.url.path, body))
        return body

    async def info(self, request):
        return JSONResponse({"model_path": self.path, "weight_version": self.label, "is_generation": True})

    async def plain(self, request):
        await self.read(request)
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def flush(self, request):
        await self.read(request)
        return PlainTextResponse("Cache flushed.\n")

    async def update(self, request):
        body = await self.read(request)
        if body["model_path"] in self.refused:
            answer = {
                "success": False,
                "message": "Failed to update weights: shapes. Rolling back.",
                "num_paused_requests": 0,
            }
            return JSONResponse(answer, status_code=400)
        self.path, self.label = body["model_path"], body["weight_version"]
        return JSONResponse(
            {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        )

    async def relabel(self, request):
        self.label = (await self.read(request))["new_version"]
        return JSONResponse({"success": True, "message": "", "new_version": self.label})

    async def generate(self, request):
        await self.read(request)
        self.checked = self.label
        logprob = self.logprob if self.path.endswith("/versions/v1") else -1.0
        return Response(
            json.dumps({"output_ids": [5], "meta_info": {"output_token_logprobs": [[logprob, 5, None]]}})
        )


@pytest.fixture
def engine():
    return Sglang()


@contextmanager
def serving(engine):
    with running(engine.app()) as server:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"


@pytest.fixture
def row(tmp_path):
    """A version's row, and the file of a full one."""

    def make(version, kind="full"):
        path = tmp_path / "versions" / f"v{version}"
        if kind == "full":
            path.mkdir(parents=True, exist_ok=True)
            (path / "model.safetensors").touch()
        return PolicyVersion(version, None, kind, str(path), version, "", 0, committed=True, orphaned=False)

    return make


def install(address, version, scratch=Path("/nowhere")):
    async def work():
        async with EngineApi(address, timeout_s=60) as api:
            installer = SglangInstaller(api, "p", scratch)
            await installer.look()
            await installer.pause()
            try:
                await installer.install(WEIGHTS, version)
            finally:
                work.version = installer.version
        return installer.version

    return asyncio.run(work())


def test_an_update_asks_what_is_documented(engine, row):
    with serving(engine) as address:
        assert install(address, row(1)) == 1
    assert (engine.checked, engine.label) == ("installing", "1@p"), (
        "weights are no version until they are checked"
    )
    update = {
        "model_path": row(1).path,
        "load_format": "safetensors",
        "weight_version": "installing",
        "flush_cache": True,
    }
    check = {
        "input_ids": [0],
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
        "return_logprob": True,
        "extra_key": "check:1",
    }
    assert engine.log == [
        ("/pause_generation", {"mode": "abort"}),
        ("/update_weight_version", {"new_version": "installing", "abort_all_requests": False}),
        ("/update_weights_from_disk", update),
        ("/flush_cache", None),
        ("/continue_generation", {}),
        ("/generate", check),
        ("/update_weight_version", {"new_version": "1@p", "abort_all_requests": False}),
    ]


def test_weights_that_do_not_load_leave_the_old_label_and_let_calls_come(engine, row):
    engine.refused = {row(2).path}
    with serving(engine) as address:
        install(address, row(1))
        with pytest.raises(PolicyError, match="SGLang cannot load it: Failed to update weights: shapes"):
            install(address, row(2))
    assert engine.label == "1@p"
    assert engine.log[-1] == ("/continue_generation", {})


@pytest.mark.parametrize("logprob", [None, float("nan")])
def test_weights_that_compute_nothing_usable_are_taken_back(engine, row, logprob):
    engine.logprob = logprob
    with serving(engine) as address, pytest.raises(PolicyError, match="not finite"):
        install(address, row(1))
    assert (engine.path, engine.label) == ("/models/start", "default")
    asked = [path for path, _ in engine.log]
    assert asked[-4:] == [
        "/pause_generation",
        "/update_weights_from_disk",
        "/flush_cache",
        "/continue_generation",
    ]


def test_an_engine_that_cannot_go_back_is_not_said_to_serve_anything(engine, row):
    engine.logprob, engine.refused = None, {"/models/start"}
    with serving(engine) as address, pytest.raises(UpstreamError, match="has lost its weights; restart it"):
        install(address, row(1))


def test_an_engine_that_was_started_anew_serves_no_version(engine):
    async def look(address):
        async with EngineApi(address, timeout_s=60) as api:
            installer = SglangInstaller(api, "p", Path("/nowhere"))
            found = []
            for label in ("default", "3@p", "3@other", "installing", "3"):
                engine.label = label
                await installer.look()
                found.append(installer.version)
        return found

    with serving(engine) as address:
        assert asyncio.run(look(address)) == [None, 3, None, None, None]
    with pytest.raises(UpstreamLost, match="does not answer GET /model_info"):
        asyncio.run(look(address))


def test_a_delta_is_staged_whole_until_another_version_is_served(engine, row, tmp_path):
    scratch = tmp_path / "scratch"
    with serving(engine) as address:
        install(address, row(3, "delta"), scratch)
        assert engine.path == str(scratch / "staged-v00000003")
        install(address, row(4, "delta"), scratch)
    assert [path.name for path in scratch.iterdir()] == ["staged-v00000004"]
