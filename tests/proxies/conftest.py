"""A proxy with scripted engines, in the test's own event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from harnessgym.proxy_client import ControlClient, OpenedSession, trust_for
from harnessgym.store import calls, policies, rollouts, runs
from harnessgym.store.calls import RecordedCall, Segment
from harnessgym.store.tables import calls as calls_table
from harnessgym.store.trace_store import TraceStore
from harnessgym.store.workers import WorkerRow
from harnessgym.task import Task
from proxies.app import Proxy, ProxySettings
from proxies.language import PolicyLanguage
from proxies.upstream import Upstream
from proxies.upstreams.scripted import ScriptedUpstream

POLICY = Path(__file__).parents[2] / "environments/lookup/policy"
KEY = "control-key"


@dataclass
class World:
    """A run with one rollout, a proxy, and an HTTP client."""

    store: TraceStore
    settings: ProxySettings
    rollout_id: str
    language: PolicyLanguage
    upstreams: dict[str, Upstream]
    http: httpx.AsyncClient
    proxy: Proxy = field(init=False)
    control: ControlClient = field(init=False)

    async def start(self) -> None:
        """Start a proxy on the store as it is."""
        self.proxy = Proxy(self.settings, self.store, connect=lambda row: self.upstreams[row.id])
        await self.proxy.start()
        self.control = ControlClient(self.proxy.control_address, KEY)
        for name, upstream in self.upstreams.items():
            await self.add_worker(name, upstream)

    async def stop(self) -> None:
        """Stop the proxy; the store stays open."""
        await self.control.aclose()
        await self.proxy.stop()

    async def open(self, **options: Any) -> OpenedSession:
        """A session of the rollout."""
        return await self.control.open_session(self.rollout_id, **options)

    async def chat(self, key: str, messages: Sequence[dict[str, Any]], **fields: Any) -> httpx.Response:
        """A chat completion, with the key in the path."""
        body = {"model": "m", "messages": list(messages), **fields}
        return await self.http.post(f"{self.proxy.url}/s/{key}/v1/chat/completions", json=body)

    def base(self, session: OpenedSession) -> str:
        """Base URL of the proxy with a session's key in its path."""
        return f"{self.proxy.url}/s/{session.key}"

    def scripted(self, name: str) -> ScriptedUpstream:
        """One of the scripted engines."""
        upstream = self.upstreams[name]
        assert isinstance(upstream, ScriptedUpstream)
        return upstream

    async def add_worker(self, name: str, upstream: Upstream) -> None:
        """One more engine."""
        self.upstreams[name] = upstream
        await self.proxy.workers.put(
            WorkerRow(name, self.settings.run_id, "scripted", name, upstream.version, "ready")
        )

    def break_of(self, call: RecordedCall) -> str | None:
        """Why a call did not continue the one before, if it did not."""
        query = select(calls_table.c.break_class).where(calls_table.c.id == call.id)
        return self.store.read(lambda conn: conn.execute(query).scalar())

    def text(self, text: str) -> list[int]:
        """Token ids of a sampled answer."""
        return list(self.language.renderer.tokenizer.encode(text, add_special_tokens=False).ids)  # type: ignore[attr-defined]

    def calls(self, session: OpenedSession) -> list[RecordedCall]:
        """What is recorded of a session."""
        return self.store.read(lambda conn: calls.of_sessions(conn, [session.session_id]))

    def segments(self, session: OpenedSession) -> dict[str, Segment]:
        """Its segments."""
        return self.store.read(lambda conn: calls.segments_of(conn, [session.session_id]))

    def prompt(self, session: OpenedSession, call: RecordedCall) -> list[int]:
        """A call's prompt, put together from the store alone."""
        segments, ids = self.segments(session), list[int]()
        at: str | None = call.prompt_segment
        while at is not None:
            ids = [*segments[at].ids, *ids]
            at = segments[at].parent_id
        return ids

    def completion(self, session: OpenedSession, call: RecordedCall) -> Segment:
        """A call's sampled tokens."""
        assert call.completion_segment is not None
        return self.segments(session)[call.completion_segment]

    async def status(self, session: OpenedSession, ordinal: int, *expected: str) -> RecordedCall:
        """Wait until a call has one of the statuses."""
        for _ in range(200):
            found = [call for call in self.calls(session) if call.ordinal == ordinal]
            if found and found[0].status in expected:
                return found[0]
            await asyncio.sleep(0.02)
        raise AssertionError(f"call {ordinal} is not {expected}: {self.calls(session)}")


MakeWorld = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture(scope="session")
def language() -> PolicyLanguage:
    return PolicyLanguage.of_policy(POLICY)


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The server of the tests with a real vLLM, a `tests.support.vllm_cpu.Server`, with the weights that the
    last of them left.
    """
    from tests.support import vllm_cpu  # which loads torch

    with vllm_cpu.serving(tmp_path_factory.mktemp("vllm") / "vllm.log") as server:
        yield server


@pytest.fixture
def make_world(tmp_path: Path, language: PolicyLanguage) -> MakeWorld:
    """`async with make_world(*answers) as world`: one worker that gives the answers in turn, or `upstreams=`
    by id; `url=` is that of an empty database, a file's if not given, `policy=` another policy's folder.
    """

    @asynccontextmanager
    async def make(
        *answers: str,
        upstreams: dict[str, Upstream] | None = None,
        url: str = "",
        policy: Path = POLICY,
        **options: Any,
    ) -> AsyncIterator[World]:
        with TraceStore.create(url or f"sqlite:///{tmp_path}/traces.db") as store:
            run_id = store.write(lambda conn: runs.add(conn, "test", {}, "0", "training"))
            policy_id = store.write(lambda conn: policies.register(conn, run_id, "policy"))
            task_id = store.write(lambda conn: runs.add_task(conn, "set", Task("task", "Do it.")))
            spec = rollouts.GroupSpec(
                run_id, task_id, policy_id, "train", 0, 0, {}, ("command",), "process", (0,)
            )
            store.write(lambda conn: rollouts.submit(conn, spec))
            (row,) = store.write(lambda conn: rollouts.claim(conn, run_id, "node", 60.0, 1))
            spoken = language if policy == POLICY else PolicyLanguage.of_policy(policy)
            fields = {"port": 0, "control_port": 0, "max_length": 4_000, "worker_wait_s": 5.0, **options}
            settings = ProxySettings(store=store.url, run_id=run_id, policy=policy, control_key=KEY, **fields)
            async with httpx.AsyncClient(timeout=120.0, trust_env=False, verify=trust_for("http:")) as http:
                world = World(store, settings, row.id, spoken, upstreams or {}, http)
                if upstreams is None:
                    world.upstreams = {"w0": ScriptedUpstream([world.text(answer) for answer in answers])}
                await world.start()
                try:
                    yield world
                finally:
                    await world.stop()

    return make
