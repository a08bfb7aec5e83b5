"""A node whose store does not answer: whatever does not need the store goes on."""

import asyncio
import contextlib
import signal
import threading
from contextlib import asynccontextmanager

import httpx
import psutil
import pytest

from harnessgym.proxy_client import ControlClient, trust_for
from harnessgym.rollout.endpoints import Endpoints, served
from harnessgym.rollout.node import Node
from harnessgym.rollout.pipeline import Pipeline
from harnessgym.rollout.plan import GroupPlan
from harnessgym.rollout.resource_admission import Pressure
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.store import TraceStore, policies, runs
from tests.harnessgym.rollout.tiny import HERE
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
TASK = {"task": {"set": f"{HERE}:Tiny", "id": "tiny/train/0"}}
LONGEST_S = 20.0
"""After which a stopped server goes on by itself: a node that waits for it on its event loop cannot say
so."""
SOON_S = 8.0
"""Within which everything must be answered that does not need the store: well below `LONGEST_S`."""


@asynccontextmanager
async def serving(url, folder, config):
    """A node that takes rollouts and has none yet, its endpoints, and a client that has the key."""
    with TraceStore.create(url) as store:
        run_id = store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
        plan = GroupPlan(
            run_id, store.write(lambda conn: policies.register(conn, run_id, "policy")), config, "process"
        )
        async with (
            ControlClient("http://127.0.0.1:9", "no proxy is needed") as control,
            ProcessBackend(ProcessSettings(workspace_root=folder)) as backend,
        ):
            line = Pipeline(store, control, backend, {"good": None}, config.session, plan.task)
            node = Node(store, plan, line, config.node, Pressure(folder, config.node))
            running = asyncio.create_task(node.serve())
            try:
                async with served(
                    Endpoints(node, "process", "policy", "the-key", keep_alive_s=0.2), "127.0.0.1:0"
                ) as at:
                    headers = {"authorization": "Bearer the-key"}
                    async with httpx.AsyncClient(
                        base_url=at, headers=headers, trust_env=False, verify=trust_for("http:"), timeout=60.0
                    ) as http:
                        yield http
                        assert not running.done() or running.result()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


@contextlib.contextmanager
def stopped(cluster):
    """The server and all that it has forked hold still: nothing is refused, and nothing is answered."""
    server = psutil.Process(cluster._server.pid)
    processes = [server, *server.children(recursive=True)]

    def signal_all(number):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    late = threading.Timer(LONGEST_S, signal_all, [signal.SIGCONT])
    signal_all(signal.SIGSTOP)
    late.start()
    try:
        yield
    finally:
        late.cancel()
        signal_all(signal.SIGCONT)


async def test_streams_and_requests_go_on_while_the_store_is_silent(tmp_path, make_config):
    with PostgresServer() as cluster:
        async with (
            serving(cluster.create_database(), tmp_path, make_config("good")) as http,
            http.stream("GET", "/rollouts/events") as stream,
        ):
            lines = stream.aiter_lines()

            async def beats(number):
                while number:
                    number -= (await anext(lines)).startswith(": still here")

            await beats(1)
            with stopped(cluster):
                reading = asyncio.create_task(http.get("/rollouts"))
                async with asyncio.timeout(SOON_S):
                    await beats(5)
                    assert (await http.get("/health", headers={"authorization": ""})).status_code == 401
                    assert (await http.post("/rollouts", json={"task": {}})).status_code == 422
                    health = (await http.get("/health")).json()
                assert (health["store_answers"], health["status"], health["rollouts"]) == (False, None, None)
                assert health["claimed"] == 0
                assert not reading.done()
            async with asyncio.timeout(SOON_S):
                assert (await reading).json() == {"rollouts": [], "next": None}
                assert (await http.get("/health")).json()["status"] == "training"
                made = (await http.post("/rollouts", json=TASK)).json()
                while made["rollouts"][0] not in await anext(lines):
                    pass
