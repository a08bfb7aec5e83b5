import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
import pytest
import torch
import uvicorn
from anyio.from_thread import start_blocking_portal
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from harnessgym.errors import PolicyError
from harnessgym.store import TraceStore, leases, policies, runs, workers
from harnessgym.store.policies import PolicyVersion
from tests.trainers.conftest import fronted
from trainers.engine import EngineSettings
from trainers.engine.server import follow, load_engine
from trainers.policies.loading import load_policy
from trainers.policies.native import NativePolicy
from trainers.policies.native_config import NativeConfig
from trainers.policies.native_weights import save_policy
from trainers.weights.agent import read_newest
from trainers.weights.publish import BaseVersion, publish, publish_full
from trainers.weights.settings import AgentSettings, MirrorSettings
from trainers.weights.version_server import build_app

CONFIG = NativeConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=8, max_position_embeddings=512,
)  # fmt: skip


@contextmanager
def running(app, **listening):
    """An ASGI app served by a thread."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **listening.pop("config", {})))
    thread = threading.Thread(target=server.run, kwargs=listening)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join()


class Control:
    """The proxy's control API, as the agent sees it: writes down what it is asked."""

    def __init__(self):
        self.log, self.refuse, self.hold = [], 0, threading.Event()
        self.hold.set()
        drain = Route("/control/workers/{worker}/drain", self.handle, methods=["POST"])
        self.app = Starlette(routes=[drain, Route("/control/workers", self.handle, methods=["POST"])])

    async def handle(self, request):
        if request.headers["authorization"] != "Bearer key":
            return JSONResponse({}, status_code=401)
        if self.refuse:
            self.refuse -= 1
            return JSONResponse({}, status_code=503)
        body = await request.json()
        if "worker" not in request.path_params:
            self.log.append((body["id"], "register", body["version"]))
            return JSONResponse({})
        self.log.append((request.path_params["worker"], "drain", body["timeout_s"]))
        while not self.hold.is_set():
            await asyncio.sleep(0.01)
        return JSONResponse({"in_flight": 0})


class Site:
    """A store with a run and a policy, a model folder, and a control server on a unix socket."""

    def __init__(self, folder):
        self.folder, self.url = folder, f"sqlite:///{folder}/traces.db"
        self.store = TraceStore.create(self.url)
        self.run_id = self.store.write(lambda conn: runs.add(conn, "r", {}, "0", "running"))
        self.policy_id = self.store.write(lambda conn: policies.register(conn, self.run_id, "main"))
        self.control, self.socket = Control(), f"{folder}/control.sock"
        save_policy(self.weights(0, raw=True), folder / "model")

    def weights(self, seed, *, raw=False):
        torch.manual_seed(seed)
        policy = NativePolicy(CONFIG)
        return policy if raw else policy.published()

    def publish(self, version, *, weights=None, record=True, **fields):
        made = publish_full(
            self.folder / "versions",
            version,
            None,
            weights or self.weights(version),
            step=version,
            run=self.run_id,
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
        if record:
            self.store.write(lambda conn: policies.publish(conn, self.policy_id, row))
        return made

    def publish_damaged(self, damage):
        """Version 1, which no engine can serve."""
        if damage == "not a number":
            return self.publish(
                1, weights={name: tensor * float("nan") for name, tensor in self.weights(1).items()}
            )
        if damage == "other shapes":
            return self.publish(1, weights={name: torch.zeros(2) for name in self.weights(1)})
        made = self.publish(1, record=False)
        if damage == "file":
            (made.path / "COMMITTED").unlink()
        checksum = made.checksum if damage == "file" else "0" * 32
        row = PolicyVersion(1, None, "full", str(made.path), 1, checksum, 1, committed=True, orphaned=False)
        self.store.write(lambda conn: policies.publish(conn, self.policy_id, row))
        return made

    def agent(self, **options):
        values = {
            "store": self.url,
            "policy_id": self.policy_id,
            "run_id": self.run_id,
            "poll_s": 0.02,
            "drain_s": 1.0,
        }
        return AgentSettings(
            **{**values, "control_url": f"unix:{self.socket}", "control_key": "key", **options}
        )

    @contextmanager
    def engine(self, worker="w1", **options):
        settings = EngineSettings(
            model=self.folder / "model", port=0, worker_id=worker, agent=self.agent(**options)
        )
        engine = load_engine(settings)
        with fronted(engine, settings) as url, start_blocking_portal() as portal:
            following = portal.start_task_soon(follow, engine, settings, url)
            yield url
            following.cancel()

    def worker(self, worker="w1"):
        return next(
            (
                row
                for row in self.store.read(lambda conn: workers.of_run(conn, self.run_id))
                if row.id == worker
            ),
            None,
        )


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    yield made
    made.store.close()


@contextmanager
def control(site):
    with running(site.control.app, config={"uds": site.socket}):
        yield site.control


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def version_of(url):
    return httpx.get(f"{url}/stats").json()["version"]


def ask(url):
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "seed": 1, "return_token_ids": True}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=30).json()["choices"][0]


def test_a_new_version_is_drained_for_installed_and_announced(site):
    with control(site) as proxy, site.engine() as url:
        wait_for(lambda: proxy.log)
        assert (site.worker().version, site.worker().state, site.worker().address, site.worker().kind) == (
            0,
            "ready",
            url,
            "embedded",
        )
        assert ask(url)["policy_versions"] == [[4, 0]]
        site.publish(1)
        wait_for(lambda: len(proxy.log) == 3)
        assert proxy.log == [("w1", "register", 0), ("w1", "drain", 1.0), ("w1", "register", 1)]
        assert (site.worker().version, site.worker().state) == (1, "ready")
        assert ask(url)["policy_versions"] == [[4, 1]]
        lease = f"update:{site.policy_id}:0"
        wait_for(lambda: site.store.read(lambda conn: leases.holder_of(conn, lease)) is None)
    assert site.worker().state == "ended"


def test_the_newest_version_is_served_from_the_start(site):
    site.publish(1)
    site.publish(4)
    with site.engine(control_url=None) as url:
        assert ask(url)["policy_versions"] == [[4, 4]]


def test_only_the_newest_of_several_versions_is_installed(site):
    with control(site) as proxy, site.engine() as url:
        wait_for(lambda: proxy.log)
        proxy.hold.clear()
        site.publish(1)
        wait_for(lambda: len(proxy.log) == 2)
        assert site.worker().state == "draining"
        for version in (2, 3, 4):
            site.publish(version)
        proxy.hold.set()
        wait_for(lambda: version_of(url) == 4)
        wait_for(lambda: len(proxy.log) == 5)
        assert [version for _, action, version in proxy.log if action == "register"] == [0, 1, 4]


def test_orphaned_versions_are_left(site):
    for version in (1, 2, 3):
        site.publish(version)
    with site.engine(control_url=None) as url:
        assert version_of(url) == 3
        site.store.write(lambda conn: policies.orphan_after(conn, site.policy_id, 1))
        wait_for(lambda: version_of(url) == 1)


def test_a_restarting_proxy_is_waited_for_while_serving_goes_on(site, caplog):
    with site.engine() as url:
        with control(site) as proxy:
            wait_for(lambda: proxy.log)
        site.publish(1)
        with caplog.at_level(logging.WARNING):
            wait_for(lambda: "cannot be used" in caplog.text)
        assert ask(url)["policy_versions"] == [[4, 0]]
        site.control.refuse = 1
        with control(site):
            wait_for(lambda: site.worker().version == 1 and site.worker().state == "ready")


def test_workers_update_one_at_a_time(site):
    with control(site) as proxy, site.engine("w1") as first, site.engine("w2") as second:
        wait_for(lambda: len(proxy.log) == 2)
        proxy.hold.clear()
        site.publish(1)
        wait_for(lambda: len(proxy.log) == 3)
        time.sleep(0.3)
        assert len(proxy.log) == 3
        proxy.hold.set()
        wait_for(lambda: version_of(first) == version_of(second) == 1)
        wait_for(lambda: len(proxy.log) == 6)
        assert [action for _, action, _ in proxy.log] == ["register"] * 2 + ["drain", "register"] * 2


def test_a_dead_holders_lease_expires(site):
    lease = f"update:{site.policy_id}:0"
    site.store.write(lambda conn: leases.acquire(conn, lease, "dead", 0.5))
    with site.engine(control_url=None) as url:
        site.publish(1)
        wait_for(lambda: version_of(url) == 1)


def test_a_worker_that_was_killed_while_it_updated_gives_its_lease_back_when_it_starts(site):
    """It starts with the newest weights, so it would never use the lease again, and the others would wait
    until it expires.
    """
    leased = [f"update:{site.policy_id}:{number}" for number in range(2)]
    site.publish(1)
    for lease, holder in zip(leased, ("w1", "w2"), strict=True):
        site.store.write(lambda conn, lease=lease, holder=holder: leases.acquire(conn, lease, holder, 60.0))
    with site.engine("w1", control_url=None, update_leases=2):
        wait_for(lambda: site.store.read(lambda conn: leases.holder_of(conn, leased[0])) is None)
        assert site.store.read(lambda conn: leases.holder_of(conn, leased[1])) == "w2"


@pytest.mark.parametrize("damage", ["file", "recorded checksum", "not a number", "other shapes"])
def test_a_bad_version_is_never_announced_and_ends_the_agent(site, damage, caplog):
    with control(site) as proxy, site.engine() as url, caplog.at_level(logging.ERROR):
        wait_for(lambda: proxy.log)
        tokens = ask(url)["token_ids"]
        site.publish_damaged(damage)
        wait_for(lambda: site.worker().state == "dead")
        wait_for(lambda: "The weight agent of w1 ended" in caplog.text)
        assert f"w1 cannot serve policy version 1 at {site.folder}/versions/v00000001: " in caplog.text
        assert ask(url)["token_ids"] == tokens
        assert version_of(url) == 0
        drained = damage in ("not a number", "other shapes")
        assert [action for _, action, _ in proxy.log] == ["register", *["drain"] * drained]
        assert site.store.read(lambda conn: leases.holder_of(conn, f"update:{site.policy_id}:0")) is None


def test_a_bad_version_ends_the_process_for_good(site):
    values = EngineSettings(
        model=site.folder / "model", port=0, worker_id="w1", agent=site.agent(control_url=None)
    )
    config = site.folder / "engine.json"
    config.write_text(values.model_dump_json(exclude_none=True))
    command = [sys.executable, "-m", "harnessgym", "engine", "--config", str(config)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        process.stdout.readline()
        wait_for(lambda: site.worker() is not None and site.worker().state == "ready")
        made = site.publish_damaged("not a number")
        assert process.wait(20) == 2
        words = process.stderr.read().splitlines()
    assert words[-1].startswith(f"harnessgym: w1 cannot serve policy version 1 at {made.path}: ")
    assert "not finite" in words[-1]
    assert site.worker().state == "dead"


def test_an_update_whose_lease_is_lost_is_tried_again(site, caplog):
    lease = f"update:{site.policy_id}:0"
    with control(site) as proxy, site.engine() as url, caplog.at_level(logging.WARNING):
        wait_for(lambda: proxy.log)
        proxy.hold.clear()
        site.publish(1)
        wait_for(lambda: len(proxy.log) == 2)
        site.store.write(lambda conn: leases.release(conn, lease, "w1"))
        site.store.write(lambda conn: leases.acquire(conn, lease, "w2", 60))
        proxy.hold.set()
        wait_for(lambda: f"Update lease {lease} was lost before version 1 was installed" in caplog.text)
        assert version_of(url) == 0
        assert proxy.log[-1] == ("w1", "register", 0)
        site.store.write(lambda conn: leases.release(conn, lease, "w2"))
        wait_for(lambda: proxy.log[-1] == ("w1", "register", 1))


def test_a_wrong_control_key_is_logged_and_serving_goes_on(site, caplog):
    with control(site), site.engine(control_key="wrong") as url, caplog.at_level(logging.WARNING):
        site.publish(1)
        wait_for(lambda: "refused POST /control/workers with status 401" in caplog.text)
        assert ask(url)["policy_versions"] == [[4, 0]]


def test_reading_the_newest_version(site):
    assert read_newest(site.store, site.policy_id) is None
    site.publish(1)
    version, weights = read_newest(site.store, site.policy_id)
    assert version.version == 1
    assert all(torch.equal(tensor, weights[name]) for name, tensor in site.weights(1).items())
    data = site.folder / "versions" / "v00000001" / "model.safetensors"
    data.write_bytes(data.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(PolicyError, match="is not the one that was published"):
        read_newest(site.store, site.policy_id)


def save_policy_weights(folder, weights):
    policy = load_policy(folder)
    policy.load(weights)
    save_policy(policy, folder)


def publish_deltas(site, count):
    """Versions 1..count, each of which changes a few weights of the one before; all weights."""
    made = {0: site.weights(0)}
    site.publish(0)
    for version in range(1, count + 1):
        made[version] = {name: tensor.clone() for name, tensor in made[version - 1].items()}
        for tensor in made[version].values():
            tensor.view(-1)[version] += 0.25
        base = BaseVersion(version - 1, made[version - 1])
        found = publish(
            site.folder / "versions", version, version - 1, made[version], version, site.run_id, base=base
        )
        row = PolicyVersion(
            version,
            version - 1,
            found.kind,
            str(found.path),
            version,
            found.checksum,
            found.bytes,
            committed=True,
            orphaned=False,
        )
        site.store.write(lambda conn, row=row: policies.publish(conn, site.policy_id, row))
        assert found.kind == "delta"
        yield made[version]


def test_a_worker_installs_one_delta_after_the_other(site):
    deltas = publish_deltas(site, 3)
    next(deltas)
    with site.engine(control_url=None) as url:
        assert version_of(url) == 1
        for version in (2, 3):
            wanted = next(deltas)
            wait_for(lambda version=version: version_of(url) == version)
        tokens = ask(url)["token_ids"]
    settings = EngineSettings(model=site.folder / "model", port=0)
    save_policy_weights(site.folder / "model", wanted)
    engine = load_engine(settings)
    with fronted(engine, settings) as url:
        assert ask(url)["token_ids"] == tokens


def test_an_engine_elsewhere_follows_through_a_mirror(site, tmp_path):
    """The paths in the store mean nothing to it."""
    deltas = publish_deltas(site, 3)
    next(deltas)
    site.store.write(
        lambda conn: conn.exec_driver_sql("UPDATE policy_versions SET path = '/nowhere/' || version")
    )
    with running(
        build_app(site.folder / "versions", "k" * 16), config={"host": "127.0.0.1", "port": 0}
    ) as server:
        port = server.servers[0].sockets[0].getsockname()[1]
        settings = MirrorSettings(url=f"http://127.0.0.1:{port}", folder=tmp_path / "mirror", key="k" * 16)
        with site.engine(control_url=None, mirror=settings) as url:
            assert version_of(url) == 1
            next(deltas)
            wait_for(lambda: version_of(url) == 2)
    assert sorted(path.name for path in (tmp_path / "mirror").glob("v*")) == [
        "v00000000",
        "v00000001",
        "v00000002",
    ]
