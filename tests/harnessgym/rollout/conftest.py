"""A node on real parts: store, proxy with a scripted engine, process sandboxes, harness programs."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select

from harnessgym.config import validate
from harnessgym.provisioning import make_harness
from harnessgym.proxy_client import ControlClient
from harnessgym.reward import make_rewards
from harnessgym.rollout.node import Node
from harnessgym.rollout.pipeline import Pipeline
from harnessgym.rollout.plan import GroupPlan
from harnessgym.rollout.resource_admission import Pressure
from harnessgym.run_config.run import RunConfig
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.store import TraceStore, policies, rollouts, runs, workers
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import rollouts as rollout_table
from harnessgym.store.workers import WorkerRow
from proxies.app import Proxy, ProxySettings
from proxies.language import PolicyLanguage
from proxies.upstreams.scripted import ScriptedUpstream
from tests.harnessgym.rollout.tiny import HERE, write_harnesses

POLICY = Path(__file__).parents[3] / "environments/lookup/policy"
KEY = "control-key"


@dataclass
class Line:
    """A run's store and node, with a proxy and an engine that answers "Hello!"."""

    store: TraceStore
    node: Node
    upstream: ScriptedUpstream

    async def run(self, enough, timeout_s=60.0):
        """Run the node until `enough(self)`; its errors come through."""
        serving = asyncio.create_task(self.node.serve())
        try:
            async with asyncio.timeout(timeout_s):
                while not enough(self) and not serving.done():
                    await asyncio.sleep(0.02)
        finally:
            self.store.write(lambda conn: runs.set_status(conn, self.node.plan.run_id, "done"))
            await serving

    def groups(self, purpose="train"):
        return self.store.read(lambda conn: rollouts.group_states(conn, self.node.plan.run_id, purpose))

    def rollouts(self):
        """All attempts that have ended, as mappings, in order."""
        ended = (
            select(rollout_table)
            .where(rollout_table.c.stop_reason.is_not(None))
            .order_by(rollout_table.c.ended_at)
        )
        return self.store.read(lambda conn: list(conn.execute(ended).mappings()))

    def complete(self):
        return self.store.read(
            lambda conn: rollouts.complete_groups(conn, self.node.plan.run_id, "train", 99)
        )


@pytest.fixture(scope="session")
def language():
    return PolicyLanguage.of_policy(POLICY)


@pytest.fixture
def make_config(tmp_path):
    """`make_config("good", "hangs", tasks="Impatient", group_size=4)`."""

    def make(
        *names,
        tasks="Tiny",
        status="training",
        steps=1,
        groups_per_step=1,
        group_size=2,
        session=None,
        rewards=(),
        faults=None,
        trainer=None,
        **node,
    ):
        raw = {
            "name": "test",
            "policy": {"path": str(POLICY)},
            "tasks": {"set": tasks if ":" in tasks else f"{HERE}:{tasks}"},
            "harnesses": write_harnesses(tmp_path, names),
            "sampling": {"max_tokens": 16},
            "session": session or {},
            "rewards": rewards,
            "faults": faults or {},
            "node": {"abort_after_failures": 6, **node},
            "trainer": {
                "steps": steps,
                "groups_per_step": groups_per_step,
                "group_size": group_size,
                **(trainer or {}),
            },
            "evaluation": {"tasks": 2},
        }
        return validate(RunConfig, raw, "the test")

    return make


@pytest.fixture
def make_plan(tmp_path, make_config):
    """A plan on a store of its own: `make_plan(steps=3, ...)` gives (store, plan)."""
    stores = []

    def make(*names, **options):
        store = TraceStore.create(f"sqlite:///{tmp_path}/{len(stores)}.db")
        stores.append(store)
        run_id = store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
        policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
        return store, GroupPlan(run_id, policy_id, make_config(*(names or ("good",)), **options), "process")

    yield make
    for store in stores:
        store.close()


@pytest.fixture
def make_line(tmp_path, language, make_config):
    @asynccontextmanager
    async def make(*names, status="training", upstream=None, walls=False, **options):
        """`walls` runs harnesses in bubblewrap."""
        config = make_config(*names, **options)
        answer = list(language.renderer.tokenizer.encode("Hello!<|im_end|>", add_special_tokens=False).ids)
        upstream = upstream or ScriptedUpstream([answer])
        with TraceStore.create(f"sqlite:///{tmp_path}/traces.db") as store:
            run_id = store.write(lambda conn: runs.add(conn, "test", {}, "0", status))
            policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
            first = PolicyVersion(0, None, "full", str(POLICY), 0, "", 0, committed=True, orphaned=False)
            store.write(lambda conn: policies.publish(conn, policy_id, first))
            store.write(
                lambda conn: workers.upsert(conn, WorkerRow("w0", run_id, "scripted", "w0", 0, "ready"))
            )
            (tmp_path / "proxy").mkdir()
            settings = ProxySettings(
                store=store.url,
                run_id=run_id,
                policy=POLICY,
                control_key=KEY,
                port=0,
                uds=tmp_path / "proxy" / "proxy.sock" if walls else None,
                control_port=0,
                max_length=4_000,
            )
            proxy = Proxy(settings, store, connect=lambda row: upstream, language=language)
            await proxy.start()
            root = tmp_path / "workspaces"
            sandboxes = (
                Bubblewrap(BubblewrapSettings(proxy_socket_dir=tmp_path / "proxy", workspace_root=root))
                if walls
                else ProcessBackend(ProcessSettings(proxy_url=proxy.url, workspace_root=root))
            )
            try:
                async with ControlClient(proxy.control_address, KEY) as control, sandboxes as backend:
                    plan = GroupPlan(run_id, policy_id, config, "bubblewrap" if walls else "process")
                    harnesses = {section.name: make_harness(section) for section in config.harnesses}
                    line = (store, control, backend, harnesses, config.session, plan.task)
                    yield Line(
                        store,
                        Node(
                            store,
                            plan,
                            Pipeline(
                                *line,
                                make_rewards(config.rewards),
                                config.faults,
                                second_opinion=config.node.second_opinion,
                            ),
                            config.node,
                            Pressure(tmp_path / "workspaces", config.node),
                        ),
                        upstream,
                    )
            finally:
                await proxy.stop()

    return make
