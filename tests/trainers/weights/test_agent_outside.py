"""Weight agents of outside engines, with a scripted vLLM and a scripted proxy; the real ones are met in
tests/proxies.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from anyio.from_thread import start_blocking_portal
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from harnessgym.store import TraceStore, leases, policies, runs, workers
from harnessgym.store.policies import PolicyVersion
from tests.trainers.weights.serving import running
from trainers.weights.agent import WeightAgent
from trainers.weights.installers.api import EngineApi
from trainers.weights.installers.vllm import VllmInstaller
from trainers.weights.outside import OutsideSettings
from trainers.weights.publish import publish_full
from trainers.weights.version_server import build_app


class Vllm:
    """The routes that an installer asks, with the shapes of vLLM 0.32."""

    def __init__(self):
        self.log, self.label, self.paused, self.problems, self.loaded = [], "default", False, {}, None
        self.gate = threading.Event()
        self.gate.set()

    def app(self):
        posts = {
            "/pause": self.pause,
            "/resume": self.resume,
            "/collective_rpc": self.rpc,
            "/reset_prefix_cache": self.reset,
            "/update_weight_version": self.relabel,
            "/v1/completions": self.complete,
        }
        routes = [Route(path, answer, methods=["POST"]) for path, answer in posts.items()]
        return Starlette(routes=[Route("/weight_info", self.info), *routes])

    async def info(self, request):
        while self.problems.get("info") == "silent":
            await asyncio.sleep(0.01)
        return JSONResponse(
            {"weight_version": self.label}, status_code=503 if "info" in self.problems else 200
        )

    async def pause(self, request):
        assert dict(request.query_params) == {"mode": "abort", "clear_cache": "true"}
        self.paused = True
        self.log.append("pause")
        return JSONResponse({"status": "paused"})

    async def resume(self, request):
        self.paused = False
        self.log.append("resume")
        return JSONResponse({"status": "resumed"})

    async def rpc(self, request):
        body = await request.json()
        method = body["method"].removeprefix("harnessgym_")
        self.log.append(method)
        if method == "prepare":
            path, digests = body["args"]
            self.loaded = (path, json.loads(digests))
        answer = self.problems.get(method, {})
        if answer == "dies":
            self.problems["info"] = True
            return JSONResponse({}, status_code=503)
        while not self.gate.is_set():
            await asyncio.sleep(0.01)
        return JSONResponse({"results": [{}, answer]})

    async def reset(self, request):
        assert self.paused
        return JSONResponse({"success": "reset" not in self.problems})

    async def relabel(self, request):
        self.label = (await request.json())["new_version"]
        self.log.append(self.label.partition("@")[0])
        return JSONResponse({"success": True, "new_version": self.label})

    async def complete(self, request):
        assert not self.paused
        return JSONResponse({"choices": [{"logprobs": {"token_logprobs": [-1.0]}}]})


class Control:
    """The proxy's control API: writes down what it is asked; some calls take several cuts to end."""

    def __init__(self, vllm):
        self.log, self.in_flight, self.vllm = [], [], vllm

    def app(self):
        return Starlette(
            routes=[
                Route("/control/workers", self.register, methods=["POST"]),
                Route("/control/workers/{worker}/drain", self.drain, methods=["POST"]),
            ]
        )

    async def register(self, request):
        body = await request.json()
        assert (body["id"], body["kind"]) == ("v0", "vllm")
        self.log.append((body["state"], body["version"]))
        assert body["state"] != "ready" or not self.vllm.paused
        return JSONResponse({})

    async def drain(self, request):
        self.log.append(("drain", (await request.json())["timeout_s"]))
        return JSONResponse({"in_flight": self.in_flight.pop(0) if self.in_flight else 0})


class Site:
    """A store with a run and a policy, and a control server on a unix socket."""

    def __init__(self, folder):
        self.folder, self.url = folder, f"sqlite:///{folder}/traces.db"
        self.store = TraceStore.create(self.url)
        self.run_id = self.store.write(lambda conn: runs.add(conn, "r", {}, "0", "running"))
        self.policy_id = self.store.write(lambda conn: policies.register(conn, self.run_id, "main"))
        self.vllm = Vllm()
        self.control = Control(self.vllm)

    def publish(self, version):
        made = publish_full(
            self.folder / "versions", version, None, {"w": torch.full((2,), version)}, version, self.run_id
        )
        row = PolicyVersion(
            version,
            None,
            "full",
            str(made.path),
            version,
            made.checksum,
            made.bytes,
            committed=True,
            orphaned=False,
        )
        self.store.write(lambda conn: policies.publish(conn, self.policy_id, row))
        return made.path

    def label(self, version):
        return f"{version}@{self.policy_id}"

    @contextmanager
    def engine(self, port=0):
        with running(self.vllm.app(), port=port) as server:
            yield server.servers[0].sockets[0].getsockname()[1]

    def settings(self, port):
        return {
            "store": self.url, "policy_id": self.policy_id, "run_id": self.run_id, "engine": "vllm", "worker_id": "v0",
            "engine_url": f"http://127.0.0.1:{port}", "poll_s": 0.02, "look_s": 0.05, "drain_s": 0.5,
            "control_url": f"unix:{self.folder}/control.sock", "control_key": "key", "scratch": self.folder,
        }  # fmt: skip

    @contextmanager
    def agent(self, port, **options):
        """An agent in a thread."""
        settings = OutsideSettings(**{**self.settings(port), **options})

        async def work():
            async with EngineApi(settings.engine_url, timeout_s=30, quick_s=settings.answer_s) as api:
                engine = VllmInstaller(api, self.policy_id, settings.scratch)
                await WeightAgent(settings, "v0", settings.engine_url, engine).run()

        with (
            running(self.control.app(), uds=f"{self.folder}/control.sock"),
            start_blocking_portal() as portal,
        ):
            following = portal.start_task_soon(work)
            yield
            following.cancel()

    @contextmanager
    def process(self, port, **options):
        """An agent's process."""
        config = self.folder / "agent.json"
        config.write_text(json.dumps({**self.settings(port), "scratch": str(self.folder), **options}))
        command = [sys.executable, "-m", "harnessgym", "weights-agent", "--config", str(config)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        with (
            running(self.control.app(), uds=f"{self.folder}/control.sock"),
            subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def worker(self):
        return next(iter(self.store.read(lambda conn: workers.of_run(conn, self.run_id))), None)

    def counted_as(self):
        """State in which admission sees the worker."""
        return next(
            (row.state for row in self.store.read(lambda conn: workers.engines_of(conn, self.run_id))), None
        )

    def serves(self, version, state="ready"):
        return (row := self.worker()) is not None and (row.version, row.state) == (version, state)


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    yield made
    made.store.close()


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def test_calls_that_are_left_are_ended_before_weights_change(site):
    with site.engine() as port, site.process(port) as process:
        wait_for(lambda: site.control.log == [("ready", 0)])
        site.control.in_flight = [3, 2, 1]
        path = site.publish(4)
        wait_for(lambda: site.serves(4))
        drains = [("drain", 0.5), ("drain", 1.0), ("drain", 1.0), ("drain", 1.0)]
        wait_for(lambda: len(site.control.log) == 6)
        assert site.control.log[1:] == [*drains, ("ready", 4)]
        assert site.vllm.log == [
            "resume",
            *["pause"] * 3,
            "prepare",
            "installing",
            "swap",
            "resume",
            "4",
            "resume",
        ]
        assert site.vllm.loaded[0] == f"{path}/model.safetensors"
        assert site.vllm.loaded[1].keys() == {"w"}
        assert (site.worker().kind, site.worker().address) == ("vllm", f"http://127.0.0.1:{port}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert site.control.log[-1] == ("drain", 0.0)
        assert site.serves(4, "ended")


def test_an_engine_that_comes_back_is_updated_before_calls_come(site):
    site.publish(2)
    with site.engine() as port, site.agent(port):
        wait_for(lambda: site.serves(2))
        wait_for(lambda: site.control.log[-1:] == [("ready", 2)])
        site.vllm.label = "default"
        wait_for(lambda: site.control.log[-1] == ("ready", 2) and ("dead", 2) in site.control.log)
        since = site.control.log[site.control.log.index(("dead", 2)) :]
        assert since == [("dead", 2), ("drain", 0.5), ("drain", 1.0), ("ready", 2)]
        assert site.vllm.label == site.label(2)


def test_no_calls_come_to_an_engine_that_does_not_answer(site):
    site.publish(2)
    with site.engine() as port, site.agent(port):
        wait_for(lambda: site.control.log[-1:] == [("ready", 2)])
        site.vllm.problems = {"info": True}
        wait_for(lambda: site.control.log[-1] == ("dead", 2))
        assert site.serves(0, "dead")
        site.vllm.problems = {}
        wait_for(lambda: site.control.log[-1] == ("ready", 2))
        assert site.vllm.log.count("swap") == 1


def test_no_calls_come_to_an_engine_that_accepts_connections_and_does_not_answer(site):
    site.publish(2)
    with site.engine() as port, site.agent(port, answer_s=2.0):
        wait_for(lambda: site.control.log[-1:] == [("ready", 2)])
        site.vllm.problems = {"info": "silent"}
        wait_for(lambda: site.control.log[-1] == ("silent", 2))
        assert site.counted_as() == "silent"
        site.vllm.problems = {"info": True}
        wait_for(lambda: site.counted_as() == "dead")
        site.vllm.problems = {}
        wait_for(lambda: site.control.log[-1] == ("ready", 2))
        assert site.vllm.log.count("swap") == 1


def test_no_calls_come_to_an_engine_that_dies_before_anything_was_published(site):
    with site.engine() as port, site.agent(port):
        wait_for(lambda: site.control.log[-1:] == [("ready", 0)])
        site.vllm.problems = {"info": True}
        wait_for(lambda: site.control.log[-1] == ("dead", 0))
        assert site.serves(0, "dead")
        site.vllm.problems = {}
        wait_for(lambda: site.control.log[-1] == ("ready", 0))


def test_no_calls_come_to_an_engine_that_dies_while_another_one_is_updated(site):
    site.publish(1)
    lease = f"update:{site.policy_id}:0"
    with site.engine() as port, site.agent(port):
        wait_for(lambda: site.control.log[-1:] == [("ready", 1)])
        site.store.write(lambda conn: leases.acquire(conn, lease, "another", 600.0))
        site.publish(2)
        time.sleep(0.5)  # it waits for the lease by then
        site.vllm.problems = {"info": True}
        wait_for(lambda: site.control.log[-1] == ("dead", 1))
        assert site.counted_as() == "dead"
        site.vllm.problems = {}
        site.store.write(lambda conn: leases.release(conn, lease, "another"))
        wait_for(lambda: site.control.log[-1] == ("ready", 2))


@pytest.mark.parametrize("step", ["prepare", "swap"])
def test_an_engine_that_dies_while_it_is_updated_does_not_count_as_serving(site, step):
    site.publish(1)
    with site.engine() as port, site.agent(port):
        wait_for(lambda: site.control.log[-1:] == [("ready", 1)])
        site.vllm.problems = {step: "dies"}
        site.publish(2)
        wait_for(lambda: "info" in site.vllm.problems)
        wait_for(lambda: site.counted_as() == "dead")
        time.sleep(0.5)
        assert site.counted_as() == "dead"
        site.vllm.problems = {}
        wait_for(lambda: site.control.log[-1] == ("ready", 2))


def test_a_worker_whose_agent_was_killed_does_not_count_as_serving_for_long(site):
    site.publish(1)
    with site.engine() as port, site.process(port, lease_ttl_s=1.0) as process:
        wait_for(lambda: site.serves(1))
        time.sleep(1.5)
        assert site.counted_as() == "ready"
        process.kill()
        wait_for(lambda: site.counted_as() == "dead")
        assert site.serves(1), "what was said last is kept"
    with site.engine(port), site.agent(port):
        wait_for(lambda: site.counted_as() == "ready")


def test_a_version_that_is_overtaken_while_it_is_installed_does_not_end_the_agent(site):
    """Retention may have removed its files under the engine's hands."""
    site.publish(1)
    with site.engine() as port, site.agent(port):
        wait_for(lambda: site.control.log[-1:] == [("ready", 1)])
        site.vllm.problems = {"prepare": {"error": "w is missing", "reason": "unfit"}}
        site.vllm.gate.clear()
        before = site.vllm.log.count("prepare")
        site.publish(2)
        wait_for(lambda: site.vllm.log.count("prepare") > before)
        site.publish(3)
        site.vllm.problems = {}
        site.vllm.gate.set()
        wait_for(lambda: site.control.log[-1] == ("ready", 3))
        assert [version for state, version in site.control.log if state == "ready"] == [1, 1, 3]
        assert site.serves(3)


def test_an_engine_elsewhere_loads_what_the_mirror_has(site):
    site.publish(1)
    site.store.write(
        lambda conn: conn.exec_driver_sql("UPDATE policy_versions SET path = '/nowhere/' || version")
    )
    with running(build_app(site.folder / "versions", "k" * 16)) as server, site.engine() as port:
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with site.agent(port, mirror={"url": url, "folder": site.folder / "mirror", "key": "k" * 16}):
            wait_for(lambda: site.serves(1))
    assert site.vllm.loaded[0] == f"{site.folder}/mirror/v00000001/model.safetensors"


def test_an_installation_that_another_agent_began_is_finished(site):
    site.publish(1)
    site.vllm.label, site.vllm.paused = "installing", True
    with site.engine() as port, site.agent(port):
        wait_for(lambda: site.control.log[-1:] == [("ready", 1)])
        assert (site.vllm.label, site.vllm.paused) == (site.label(1), False)


def test_an_engine_that_was_left_paused_is_resumed(site):
    site.publish(1)
    site.vllm.label, site.vllm.paused = site.label(1), True
    with site.engine() as port, site.agent(port):
        wait_for(lambda: site.control.log[-1:] == [("ready", 1)])
        assert site.vllm.log == ["resume"]


@pytest.mark.parametrize(
    ("method", "answer", "words"),
    [
        (
            "prepare",
            {"error": "w has shape [2], the engine's model has [3]", "reason": "unfit"},
            "w has shape",
        ),
        ("swap", {"error": "KeyError: w"}, "vLLM cannot load it: KeyError: w"),
    ],
)
def test_a_version_that_does_not_fit_ends_the_agent_and_the_engine_goes_on(site, method, answer, words):
    site.publish(1)
    with site.engine() as port, site.process(port) as process:
        wait_for(lambda: site.control.log[-1:] == [("ready", 1)])
        site.vllm.problems = {method: answer}
        site.publish(2)
        assert process.wait(60) == 2
        assert words in process.stderr.read()
        assert (site.vllm.label, site.vllm.paused) == (site.label(1), False)
        assert site.serves(1, "dead")
        assert site.store.read(lambda conn: leases.holder_of(conn, f"update:{site.policy_id}:0")) is None
        assert ("back" in site.vllm.log) == (method == "swap")


@pytest.mark.parametrize(
    ("problems", "words"),
    [
        ({"prepare": {"error": "FileNotFoundError", "reason": "unreadable"}}, "under the same path"),
        (
            {"swap": {"error": "x", "lost": "OutOfMemoryError"}},
            "has lost its weights; restart it. OutOfMemoryError",
        ),
        ({"reset": True}, "kept its prefix cache"),
    ],
)
def test_an_engine_that_fails_is_tried_again(site, problems, words, caplog):
    site.publish(1)
    site.vllm.problems = problems
    with site.engine() as port, site.agent(port):
        wait_for(lambda: site.vllm.log.count("prepare") > 1)
        assert [entry for entry in site.control.log if entry[0] == "ready"] == []
        site.vllm.problems = {}
        wait_for(lambda: site.control.log[-1:] == [("ready", 1)])
        assert words in caplog.text


def test_an_agent_that_starts_before_its_engine_waits_for_it(site):
    site.publish(1)
    with site.engine() as port:
        pass
    with site.agent(port):
        wait_for(lambda: site.serves(0, "starting"))
        with site.engine(port):
            wait_for(lambda: site.control.log[-1:] == [("ready", 1)])


def test_the_command_tells_where_the_plugin_is():
    command = [sys.executable, "-m", "harnessgym", "weights-agent", "--vllm-path"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code = "import harnessgym_vllm; print(sorted(name for name in dir(harnessgym_vllm.Weights) if not name.startswith('_')))"
    env = os.environ | {"PYTHONPATH": done.stdout.strip()}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, cwd="/"
    )
    assert found.stdout == "['harnessgym_back', 'harnessgym_prepare', 'harnessgym_swap']\n"
