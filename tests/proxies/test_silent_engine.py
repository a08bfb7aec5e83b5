"""Engines that are there and send nothing: stopped, stuck, or behind a connection that leads nowhere."""

import asyncio
import math
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress

import pytest

from harnessgym.engine_timeouts import EngineTimeouts
from harnessgym.errors import UpstreamSilent
from harnessgym.message import Sampling
from harnessgym.store.calls import silences
from harnessgym.store.workers import WorkerRow, WorkerState
from proxies.call import Call
from proxies.http_client import HttpClient
from proxies.upstream import Upstream
from proxies.upstreams.scripted import ScriptedUpstream
from proxies.upstreams.sglang import SglangUpstream
from proxies.upstreams.vllm import VllmUpstream
from proxies.workers import NoWorker, WorkerFilter, WorkerTable
from tests.proxies.conftest import POLICY, MakeWorld, World
from tests.support.engine_process import EngineProcess, continued

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]
LONG_S = 60.0
"""A limit that no test reaches."""


@contextmanager
def half_open() -> Iterator[str]:
    """An address that takes connections and requests, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def answering(*pieces: bytes | float) -> AsyncIterator[str]:
    """An address that answers every request with these bytes, waiting so many seconds in between; then it
    is silent.
    """

    closed = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                if isinstance(piece, bytes):
                    writer.write(piece)
                else:
                    await asyncio.sleep(piece)
            await reader.read()
        writer.close()
        closed.set()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.wait_for(closed.wait(), 30)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


@pytest.mark.parametrize("kind", [VllmUpstream, SglangUpstream])
async def test_an_engine_that_never_answers_is_lost(kind: type[VllmUpstream | SglangUpstream]) -> None:
    with half_open() as address:
        upstream = kind(address)
        upstream.use_timeouts(EngineTimeouts(first_token_s=0.3, probe_s=0.3))
        began = time.monotonic()
        with pytest.raises(UpstreamSilent, match=r"has sent nothing for 0\.3 s.*first_token_s"):
            async with aclosing(upstream.generate([1, 2], Sampling(), salt="")) as chunks:
                await anext(chunks)
        assert not await upstream.healthy()
        with pytest.raises(UpstreamSilent):
            await upstream.score([1, 2])
        assert time.monotonic() - began < 30
        upstream.close()


async def test_a_silent_engine_is_not_asked_again_on_another_connection() -> None:
    """Only one that closed a connection which had idled is: else it samples twice, and is waited for twice."""
    connections = 0
    closed = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            await reader.read()
        writer.close()
        closed.set()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with client.request("GET", "/") as response:
            assert await response.body() == b"ok"
        client.timeouts = EngineTimeouts(first_token_s=0.5)
        with pytest.raises(UpstreamSilent):
            await client.request("GET", "/").__aenter__()
        await asyncio.wait_for(closed.wait(), 30)
        assert (connections, client._idle) == (1, [])


@pytest.mark.parametrize(
    ("pieces", "got"),
    [((HEAD,), b""), ((HEAD, b"ab"), b"ab"), ((HEAD, 0.3, b"a", 0.3, b"b"), b"ab")],
    ids=["head", "begun", "slow"],
)
async def test_the_first_byte_and_each_further_one_have_limits_of_their_own(
    pieces: tuple[bytes | float, ...], got: bytes
) -> None:
    async with answering(*pieces) as address:
        client = HttpClient(address, timeouts=EngineTimeouts(first_token_s=1.6, idle_s=1.5))
        body = bytearray()

        async def read() -> None:
            async with client.request("GET", "/") as response:
                async for piece in response.pieces():
                    body.extend(piece)

        with pytest.raises(UpstreamSilent):
            await read()
        assert body == got
        client.close()


async def test_an_answer_may_take_longer_than_both_limits_if_it_goes_on() -> None:
    async with answering(HEAD, 0.5, b"a", 0.5, b"b", 0.5, b"c", 0.5, b"d") as address:
        client = HttpClient(address, timeouts=EngineTimeouts(first_token_s=1.5, idle_s=1.5))
        async with client.request("GET", "/") as response:
            assert await response.body() == b"abcd"
        client.close()


async def chat(world: World, count: int) -> list[int]:
    """The tokens of one call, as recorded."""
    session = await world.open(sampling={"max_tokens": count})
    reply = await world.chat(session.key, HI)
    assert reply.status_code == 200, reply.text
    (call,) = world.calls(session)
    assert list(world.completion(session, call).ids) == continued(call.prompt_len, count)
    return list(world.completion(session, call).ids)


async def suspects(world: World) -> set[str]:
    return {row["id"] for row in (await world.control.stats())["workers"] if row["suspect"]}


async def until_suspect(world: World, *expected: str) -> None:
    async with asyncio.timeout(60):
        while await suspects(world) != set(expected):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "limits", [{"idle_s": 0.5, "probe_s": LONG_S}, {"idle_s": LONG_S, "probe_s": 0.3}], ids=["idle", "health"]
)
async def test_a_stopped_engines_call_goes_on_at_another_from_its_tokens(
    make_world: MakeWorld, limits: dict[str, float]
) -> None:
    with EngineProcess(pause_s=0.02) as one, EngineProcess() as two:
        async with make_world(
            upstreams={"one": VllmUpstream(one.address)}, first_token_s=LONG_S, **limits
        ) as world:
            session = await world.open(sampling={"max_tokens": 200})
            asking = asyncio.create_task(world.chat(session.key, HI))
            call = await live_call(world, session.session_id)
            async with asyncio.timeout(60):
                while len(call.sampled.ids) < 5:
                    await asyncio.sleep(0.01)
            one.signal(signal.SIGSTOP)
            before = len(call.sampled.ids)
            await world.add_worker("two", VllmUpstream(two.address))
            assert (await asyncio.wait_for(asking, 60)).status_code == 200
            assert before < 200
            row = await world.status(session, 0, "delivered")
            assert list(world.completion(session, row).ids) == continued(row.prompt_len, 200)
            assert (row.finish_reason, row.completion_len) == ("length", 200)
            (waited,) = world.store.read(lambda conn: silences(conn, world.rollout_id))
            assert waited.answered
            assert waited.lost_s >= min(limits.values())
            assert (waited.silent_s, waited.whole_s) == (0.0, 0.0)
            assert await suspects(world) == {"one"}
            for _ in range(4):  # none of which is sent to the one that is silent
                await chat(world, 3)
            one.signal(signal.SIGCONT)
            await until_suspect(world)


@pytest.mark.parametrize(
    ("state", "counts"),
    [(None, True), ("starting", True), ("silent", True), ("dead", True), ("updating", False)],
)
async def test_a_wait_for_the_first_engine_is_lost_time_and_one_for_new_weights_is_not(
    make_world: MakeWorld, state: WorkerState | None, counts: bool
) -> None:
    async with make_world(upstreams={}) as world:
        if state is not None:
            row = WorkerRow("other", world.settings.run_id, "scripted", "other", 0, state)
            world.upstreams["other"] = ScriptedUpstream([])
            await world.proxy.workers.put(row)
        session = await world.open(sampling={"max_tokens": 8})
        asking = asyncio.create_task(world.chat(session.key, HI))
        await live_call(world, session.session_id)
        await asyncio.sleep(0.4)
        await world.add_worker("one", ScriptedUpstream([world.text("hello<|im_end|>")]))
        assert (await asyncio.wait_for(asking, 60)).status_code == 200
        await world.status(session, 0, "delivered")
        (waited,) = world.store.read(lambda conn: silences(conn, world.rollout_id))
        assert waited.answered
        assert (waited.lost_s >= 0.4) == counts
        assert counts or waited.lost_s == 0.0


async def live_call(world: World, session_id: str) -> Call:
    """The call in flight of a session."""
    async with asyncio.timeout(60):
        while True:
            session = await world.proxy.sessions.by_id(session_id)
            if session is not None and session.live:
                return next(iter(session.live.values()))
            await asyncio.sleep(0.01)


async def test_an_embedded_engine_is_stopped_and_its_call_goes_on(make_world: MakeWorld) -> None:
    """Stopping the process with the weights is enough: the one that serves HTTP for it asks it for its
    health.
    """
    argv = [sys.executable, "-m", "harnessgym", "engine", str(POLICY), "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process, EngineProcess() as other:
        try:
            assert process.stdout is not None
            address = (await asyncio.to_thread(process.stdout.readline)).split()[-1]
            upstreams: dict[str, Upstream] = {"embedded": VllmUpstream(address)}
            async with make_world(upstreams=upstreams, probe_s=0.5) as world:
                session = await world.open(sampling={"max_tokens": 4})
                assert (await world.chat(session.key, HI)).status_code == 200
                process.send_signal(signal.SIGSTOP)
                asking = asyncio.create_task(chat(world, 6))
                await until_suspect(world, "embedded")
                await world.add_worker("other", VllmUpstream(other.address))
                await asyncio.wait_for(asking, 60)
                process.send_signal(signal.SIGCONT)
                await until_suspect(world)
        finally:
            process.kill()


async def test_a_session_moves_away_from_the_engine_that_has_its_prefix(make_world: MakeWorld) -> None:
    with EngineProcess() as one, EngineProcess() as two:
        async with make_world(upstreams={"one": VllmUpstream(one.address)}, probe_s=0.3) as world:
            session = await world.open(sampling={"max_tokens": 4})
            reply = await world.chat(session.key, HI)
            await world.add_worker("two", VllmUpstream(two.address))
            one.signal(signal.SIGSTOP)
            messages = [*HI, reply.json()["choices"][0]["message"], {"role": "user", "content": "and now?"}]
            assert (await asyncio.wait_for(world.chat(session.key, messages), 60)).status_code == 200
            first, second = world.calls(session)
            assert second.parent_call_id == first.id
            assert await suspects(world) == {"one"}
            assert world.proxy.workers.all()[0].load == 0


async def test_an_engine_that_is_stuck_and_says_it_is_well_gets_no_more_calls(make_world: MakeWorld) -> None:
    with EngineProcess(pause_s=math.inf) as stuck, EngineProcess() as good:
        upstreams: dict[str, Upstream] = {"stuck": VllmUpstream(stuck.address)}
        async with make_world(upstreams=upstreams, first_token_s=0.5, probe_s=0.1) as world:
            asking = asyncio.create_task(chat(world, 3))
            await until_suspect(world, "stuck")
            await world.add_worker("good", VllmUpstream(good.address))
            await asyncio.wait_for(asking, 60)
            for _ in range(8):
                await asyncio.wait_for(chat(world, 3), 60)
                assert await suspects(world) == {"stuck"}
            assert await upstreams["stuck"].healthy()


async def test_an_engine_that_is_slow_keeps_its_calls(make_world: MakeWorld) -> None:
    with EngineProcess(pause_s=2.5) as slow:
        async with make_world(upstreams={"slow": VllmUpstream(slow.address)}, probe_s=1.0) as world:
            asking = asyncio.create_task(chat(world, 2))
            while not asking.done():
                assert await suspects(world) == set()
                await asyncio.sleep(0.02)
            await asking


async def test_a_call_waits_for_the_only_engine_until_it_goes_on(make_world: MakeWorld) -> None:
    with EngineProcess() as only:
        only.signal(signal.SIGSTOP)
        async with make_world(
            upstreams={"only": VllmUpstream(only.address)}, probe_s=0.2, worker_wait_s=LONG_S
        ) as world:
            asking = asyncio.create_task(chat(world, 6))
            await until_suspect(world, "only")
            only.signal(signal.SIGCONT)
            await asyncio.wait_for(asking, 60)


async def test_a_call_that_is_taken_back_first_leaves_the_engine_to_be_checked() -> None:
    """Rollouts shorter than the check would be sent to a stopped engine for ever: without calls it is the
    least loaded one.
    """
    with half_open() as address:
        table = WorkerTable(
            lambda row: VllmUpstream(row.address), wait_s=0.1, timeouts=EngineTimeouts(probe_s=0.3)
        )
        await table.put(WorkerRow("w", None, "vllm", address, 0, "ready"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), table.taking(WorkerFilter()) as worker:
                await asyncio.sleep(LONG_S)
        async with asyncio.timeout(30):
            while not worker.suspect:
                await asyncio.sleep(0.02)
        with pytest.raises(NoWorker):
            async with table.taking(WorkerFilter()):
                pass
        table.close()
