"""Weight agents beside a real vLLM, behind a real proxy, with calls in flight. Run with
HARNESSGYM_REQUIRE=vllm; minutes.

Whose weights gave a token is told by transformers: its logprob of the token under the weights of the version
that is stored.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sqlalchemy import select
from torch import Tensor

from harnessgym.errors import PolicyError
from harnessgym.proxy_client import ControlClient, OpenedSession
from harnessgym.store import TraceStore, calls, policies, workers
from harnessgym.store.policies import PolicyVersion
from harnessgym.store.tables import rollouts, sessions
from harnessgym.traces.verification.verify import verify
from proxies.app import Proxy
from tests.harnessgym.rollout.tiny import HERE as TINY
from tests.proxies.conftest import KEY, MakeWorld, World
from tests.support import vllm_cpu
from tests.support.vllm_cpu import logprobs_under, other_weights, reference
from tests.test_bad_input_runs import Run
from trainers.weights.agent import WeightAgent
from trainers.weights.chain import read_version
from trainers.weights.installers.api import EngineApi, label_of
from trainers.weights.installers.vllm import VllmInstaller
from trainers.weights.manifest import version_path
from trainers.weights.publish import publish_full
from trainers.weights.settings import AgentSettings

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "vllm" not in os.environ.get("HARNESSGYM_REQUIRE", ""),
        reason="installs and starts a vLLM of its own, which takes minutes: HARNESSGYM_REQUIRE=vllm runs it",
    ),
]
TOLERANCE = 1e-3
STORY = [{"role": "user", "content": "Write a long story about the sea."}]
PROMPT = [1, 504, 253, 260, 28, 339]


@pytest.fixture(scope="module")
def server(vllm: vllm_cpu.Server) -> vllm_cpu.Server:
    torch.set_num_threads(1)
    return vllm


@cache
def weights_of(version: int) -> dict[str, Tensor]:
    return other_weights(version) if version else load_file(vllm_cpu.MODEL / "model.safetensors")


@lru_cache(2)
def model_of(version: int) -> Any:
    return reference(weights_of(version))


@dataclass
class Site:
    """A world whose policy is the one that vLLM serves, and its versions."""

    world: World
    server: vllm_cpu.Server
    policy_id: str
    folder: Path

    def publish(self, version: int, weights: dict[str, Tensor] | None = None) -> PolicyVersion:
        made = publish_full(
            self.folder / "versions", version, None, weights or weights_of(version), version, "r"
        )
        row = PolicyVersion(
            version, None, "full", str(made.path), version, made.checksum, made.bytes, True, False
        )
        self.world.store.write(lambda conn: policies.publish(conn, self.policy_id, row))
        return row

    def settings(self, **options: Any) -> dict[str, Any]:
        fixed = {
            "store": self.world.store.url,
            "policy_id": self.policy_id,
            "run_id": self.world.settings.run_id,
        }
        proxy = {"control_url": self.world.proxy.control_address, "control_key": KEY, "drain_s": 0.3}
        return {**fixed, **proxy, "poll_s": 0.05, "look_s": 0.5, **options}

    @asynccontextmanager
    async def agent(self, **options: Any) -> AsyncIterator["asyncio.Task[None]"]:
        """An agent in the test's own loop."""
        async with EngineApi(self.server.address, timeout_s=600) as api:
            installer = VllmInstaller(api, self.policy_id, self.folder / "scratch")
            agent = WeightAgent(
                AgentSettings(**self.settings(**options)), "v0", self.server.address, installer
            )
            following = asyncio.create_task(agent.run())
            try:
                yield following
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    @asynccontextmanager
    async def process(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """An agent of its own: `harnessgym weights-agent`."""
        config = self.folder / "agent.json"
        outside = {
            "engine": "vllm",
            "engine_url": self.server.address,
            "worker_id": "v0",
            "scratch": str(self.folder),
        }
        config.write_text(json.dumps(self.settings(**outside)))
        command = [sys.executable, "-m", "harnessgym", "weights-agent", "--config", str(config)]
        process = await asyncio.create_subprocess_exec(*command)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def serves(self, version: int, *, state: str = "ready") -> None:
        """Wait until the worker has this version and state, in the store and at the proxy."""
        row: Any = None
        for _ in range(12_000):
            row = next(
                iter(self.world.store.read(lambda conn: workers.of_run(conn, self.world.settings.run_id))),
                None,
            )
            at_proxy = [worker.row for worker in self.world.proxy.workers.all()]
            if row and at_proxy == [row] and (row.version, row.state) == (version, state):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"the worker is {row}")

    async def label(self) -> str:
        return str((await self.world.http.get(f"{self.server.address}/weight_info")).json()["weight_version"])

    async def logprobs(self) -> list[float]:
        """The engine's own logprobs of fixed tokens."""
        body = {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
        reply = (await self.world.http.post(f"{self.server.address}/v1/completions", json=body)).json()
        entries = reply["choices"][0]["prompt_logprobs"][1:]
        return [entry[str(token)]["logprob"] for token, entry in zip(PROMPT[1:], entries, strict=True)]

    def check_tokens(self, session: OpenedSession) -> set[int]:
        """See `checked`."""
        return checked(self.world.store, session.session_id, model_of)


def checked(store: TraceStore, session_id: str, model_of: Callable[[int], Any]) -> set[int]:
    """Compare every stored token's logprob with the weights of its stored version. Returns the versions."""
    seen: set[int] = set()
    segments = store.read(lambda conn: calls.segments_of(conn, [session_id]))
    for call in store.read(lambda conn: calls.of_sessions(conn, [session_id])):
        assert call.completion_segment is not None
        completion, prompt, at = segments[call.completion_segment], list[int](), call.prompt_segment
        while at is not None:
            prompt, at = [*segments[at].ids, *prompt], segments[at].parent_id
        assert completion.logprobs is not None
        versions = np.concatenate([[span.version] * (span.end - span.start) for span in call.version_spans])
        assert len(versions) == len(completion.ids) > 0
        assert list(versions) == sorted(versions)
        for version in sorted(set(versions.tolist())):
            of = versions == version
            expected = logprobs_under(model_of(version), prompt, list(completion.ids)).numpy()
            np.testing.assert_allclose(np.array(completion.logprobs)[of], expected[of], atol=TOLERANCE)
            seen.add(version)
    return seen


@asynccontextmanager
async def sited(make_world: MakeWorld, server: vllm_cpu.Server, folder: Path) -> AsyncIterator[Site]:
    async with make_world(upstreams={}) as world:
        policy_id = world.store.read(lambda conn: conn.execute(select(rollouts.c.policy_id)).scalar_one())
        await world.stop()
        settings = {"policy": vllm_cpu.MODEL, "max_length": 2_000, "worker_wait_s": 900.0}
        world.proxy = Proxy(world.settings.model_copy(update=settings), world.store)
        await world.proxy.start()
        world.control = ControlClient(world.proxy.control_address, KEY)
        world.http.timeout = httpx.Timeout(1200.0)
        yield Site(world, server, policy_id, folder)


async def sampled(world: World, session: OpenedSession, tokens: int) -> None:
    """Wait until every call in flight has this many tokens."""
    found = await world.proxy.sessions.by_id(session.session_id)
    assert found is not None
    while not found.live or min(len(call.sampled.ids) for call in found.live.values()) < tokens:
        await asyncio.sleep(0.02)


async def test_every_token_has_the_version_that_gave_it(
    make_world: MakeWorld, server: vllm_cpu.Server, tmp_path: Path
) -> None:
    async with sited(make_world, server, tmp_path) as site, site.agent():
        site.publish(1)
        await site.serves(1)
        world, _ = site.world, weights_of(2)
        short = await world.open(sampling={"max_tokens": 4, "seed": 7})
        question = [{"role": "user", "content": "What is said of the sea? " * 20}]
        await world.chat(short.key, question)
        session = await world.open(sampling={"max_tokens": 240, "seed": 3})
        asked = [
            asyncio.create_task(world.chat(session.key, STORY, n=2)),
            asyncio.create_task(world.chat(session.key, STORY)),
        ]
        await sampled(world, session, 6)
        site.publish(2)
        await site.serves(2)
        assert [reply.status_code for reply in await asyncio.gather(*asked)] == [200, 200]
        assert site.check_tokens(session) == {1, 2}
        counts = [call.version_spans for call in world.calls(session)]
        assert any(len(spans) == 2 for spans in counts), counts
        again = await world.open(sampling={"max_tokens": 4, "seed": 7})
        await world.chat(again.key, question)
        assert [call.usage["cached_tokens"] for call in (*world.calls(short), *world.calls(again))] == [0, 0]
        assert (site.check_tokens(short), site.check_tokens(again)) == ({1}, {2})
        assert verify(world.store).findings == ()


async def test_what_cannot_be_served_leaves_the_old_weights(
    make_world: MakeWorld, server: vllm_cpu.Server, tmp_path: Path
) -> None:
    base = weights_of(3)
    shape = {**base, "model.layers.3.mlp.up_proj.weight": torch.zeros(7, 5)}
    extra = {**base, "model.layers.0.mlp.bogus.weight": torch.zeros(3)}
    huge = {name: tensor * 1e30 if "norm" in name else tensor for name, tensor in base.items()}
    nan = {name: tensor * float("nan") for name, tensor in base.items()}
    bad = [
        (shape, "has shape"),
        (extra, "vLLM cannot load it"),
        (huge, "cannot sample with it"),
        (nan, "not finite"),
    ]
    async with sited(make_world, server, tmp_path) as site:
        async with site.agent(control_url=None):
            site.publish(3)
            while await site.label() != label_of(site.policy_id, 3):
                await asyncio.sleep(0.1)
        expected = await site.logprobs()
        np.testing.assert_allclose(
            expected, logprobs_under(model_of(3), PROMPT[:1], PROMPT[1:]).numpy(), atol=TOLERANCE
        )
        for version, (weights, words) in enumerate(bad, start=4):
            site.publish(version, weights)
            async with site.agent(control_url=None) as following:
                with pytest.raises(PolicyError, match=words):
                    await following
            assert await site.label() == label_of(site.policy_id, 3)
            assert await site.logprobs() == expected


async def test_a_delta_is_staged_whole(
    make_world: MakeWorld, server: vllm_cpu.Server, tmp_path: Path
) -> None:
    async with sited(make_world, server, tmp_path) as site, EngineApi(server.address, timeout_s=600) as api:
        installer = VllmInstaller(api, site.policy_id, tmp_path / "scratch")
        for version in (4, 5):
            row = PolicyVersion(
                version, version - 1, "delta", str(tmp_path / "none"), version, "", 0, True, False
            )
            await installer.look()
            await installer.pause()
            await installer.install(weights_of(version), row)
            assert [path.name for path in (tmp_path / "scratch").iterdir()] == [f"staged-v{version:08d}"]
        given = await site.logprobs()
        np.testing.assert_allclose(
            given, logprobs_under(model_of(5), PROMPT[:1], PROMPT[1:]).numpy(), atol=TOLERANCE
        )


async def test_an_agent_that_was_killed_while_it_installed_finishes_when_it_is_started_again(
    make_world: MakeWorld, server: vllm_cpu.Server, tmp_path: Path
) -> None:
    async with sited(make_world, server, tmp_path) as site:
        async with site.process() as first:
            site.publish(1)
            await site.serves(1)
            site.publish(2)
            while first.returncode is None:
                (row,) = site.world.store.read(lambda conn: workers.of_run(conn, site.world.settings.run_id))
                if row.state == "updating":
                    first.kill()
                    await first.wait()
                await asyncio.sleep(0.005)
        session = await site.world.open(sampling={"max_tokens": 8})
        asked = asyncio.create_task(site.world.chat(session.key, STORY))
        async with site.process() as second:
            await site.serves(2)
            assert (await asked).status_code == 200
            assert site.check_tokens(session) == {2}
            second.send_signal(signal.SIGTERM)
            assert await second.wait() == 0
        assert [worker.row.state for worker in site.world.proxy.workers.all()] == ["draining"]


async def test_a_stopped_engine_is_silent_and_gets_calls_again_when_it_goes_on(
    make_world: MakeWorld, server: vllm_cpu.Server, tmp_path: Path
) -> None:
    async with sited(make_world, server, tmp_path) as site, site.agent():
        site.publish(1)
        await site.serves(1)
        session = await site.world.open(sampling={"max_tokens": 60, "seed": 3})
        asked = asyncio.create_task(site.world.chat(session.key, STORY))
        await sampled(site.world, session, 6)
        server.signal(signal.SIGSTOP)
        try:
            await site.serves(1, state="silent")
            assert not asked.done()
        finally:
            server.signal(signal.SIGCONT)
        await site.serves(1)
        assert (await asked).status_code == 200
        assert site.check_tokens(session) == {1}
        assert verify(site.world.store).findings == ()


def test_a_run_trains_on_an_engine_that_it_did_not_start(server: vllm_cpu.Server, tmp_path: Path) -> None:
    """η = 0: every step is trained on tokens of the version before it, which vLLM must have had."""
    outside = [{"kind": "vllm", "url": server.address}]
    run = Run(
        tmp_path,
        "good",
        policy={"path": str(vllm_cpu.MODEL)},
        tasks={"set": f"{TINY}:Patient"},
        engine={"workers": 0, "outside": outside, "drain_s": 5.0},
        trainer={
            "steps": 3, "groups_per_step": 1, "group_size": 2, "max_staleness": 0, "checkpoints": "blocking",
            "publish": {"dtype": "bfloat16"}, "update": {"lr": 1e-4},
        },
    )  # fmt: skip
    said = run.end(timeout_s=1200)
    assert "done: 3/3 steps" in said
    run.assert_verified()

    @lru_cache(1)
    def published(version: int) -> Any:
        return reference(read_version(version_path(run.paths().versions, version))[1])

    with TraceStore.open(run.paths().store_url()) as store:
        found = store.read(
            lambda conn: conn.execute(select(sessions.c.id).order_by(sessions.c.created_at)).scalars().all()
        )
        assert set.union(*(checked(store, session_id, published) for session_id in found)) == {0, 1, 2}
    assert not any(run.paths().staged.glob("*/staged-v0000000[01]"))


async def test_an_engine_that_died_is_brought_to_the_newest_version_before_calls_come(
    make_world: MakeWorld, server: vllm_cpu.Server, tmp_path: Path
) -> None:
    async with sited(make_world, server, tmp_path) as site, site.agent():
        site.publish(1)
        await site.serves(1)
        weights_of(2)
        session = await site.world.open(sampling={"max_tokens": 200, "seed": 3})
        asked = asyncio.create_task(site.world.chat(session.key, STORY))
        await sampled(site.world, session, 6)
        server.kill()
        site.publish(2)
        server.start()
        await site.serves(2)
        assert (await asked).status_code == 200
        assert site.check_tokens(session) == {1, 2}
        assert verify(site.world.store).findings == ()
