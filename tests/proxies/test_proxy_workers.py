"""Workers: registering, draining, versions, the one that dies and comes back."""

import asyncio
from collections.abc import Sequence

import pytest

from harnessgym.store.workers import WorkerRow, WorkerState, of_run
from proxies.upstreams.scripted import Failure, ScriptedUpstream
from proxies.workers import NoWorker, WorkerFilter, WorkerTable, connect_upstream
from tests.proxies.conftest import MakeWorld

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]
STATES: dict[str, WorkerState] = {"w8": "ready", "w9": "starting"}


async def test_a_drain_waits_for_calls_in_flight_and_stops_new_ones(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>") as world:
        upstream = world.upstreams["w0"]
        assert isinstance(upstream, ScriptedUpstream)
        session = await world.open()
        upstream.gate.clear()
        first = asyncio.create_task(world.chat(session.key, HI))
        await asyncio.sleep(0.2)
        assert await world.control.drain("w0", timeout_s=0.1) == 1
        second = asyncio.create_task(world.chat(session.key, [{"role": "user", "content": "later"}]))
        draining = asyncio.create_task(world.control.drain("w0", timeout_s=5.0))
        await asyncio.sleep(0.2)
        assert len(upstream.asked) == 1
        upstream.gate.set()
        assert await draining == 0
        assert (await first).status_code == 200
        assert not second.done()
        await world.control.undrain("w0", version=3)
        assert (await second).status_code == 200
        spans = [call.version_spans[0].version for call in world.calls(session)]
        assert spans == [0, 3]
        assert [asked.salt.rpartition(":")[2] for asked in upstream.asked] == ["0", "3"]
        (row,) = world.store.read(lambda conn: of_run(conn, world.settings.run_id))
        assert (row.version, row.state) == (3, "ready")
        assert (await world.control.stats())["workers"][0]["version"] == 3


async def test_sessions_keep_their_pin_and_their_least_version(make_world: MakeWorld) -> None:
    async with make_world(upstreams={}, worker_wait_s=0.3) as world:
        for version in (1, 2):
            world.upstreams[f"w{version}"] = ScriptedUpstream([world.text("one<|im_end|>")], version=version)
        await world.stop()
        await world.start()
        pinned, fresh = await world.open(version_pin=1), await world.open(min_version=2)
        for _ in range(4):
            await world.chat(pinned.key, HI)
            await world.chat(fresh.key, HI)
        assert {call.version_spans[0].version for call in world.calls(pinned)} == {1}
        assert {call.version_spans[0].version for call in world.calls(fresh)} == {2}
        future = await world.open(min_version=9)
        refused = await world.chat(future.key, HI)
        assert refused.status_code in (429, 503, 529)
        assert "retry-after" in refused.headers


async def test_a_registered_worker_is_in_the_store_and_survives_a_restart(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>") as world:
        world.upstreams["w9"] = ScriptedUpstream([world.text("nine<|im_end|>")])
        await world.control.register("w9", "http://127.0.0.1:1", 5, kind="vllm")
        await world.control.drain("w0", timeout_s=0.1)
        session = await world.open()
        assert (await world.chat(session.key, HI)).json()["choices"][0]["message"]["content"] == "nine"
        rows = world.store.read(lambda conn: of_run(conn, world.settings.run_id))
        assert [(row.id, row.version) for row in rows if row.id == "w9"] == [("w9", 5)]


async def test_a_drain_makes_no_worker_serve_that_only_starts(make_world: MakeWorld) -> None:
    async with make_world("one<|im_end|>") as world:
        for worker, state in STATES.items():
            world.upstreams[worker] = ScriptedUpstream([])
            await world.control.register(worker, "http://127.0.0.1:1", 0, state=state, kind="vllm")
            await world.control.drain(worker, timeout_s=0.1)
        rows = world.store.read(lambda conn: of_run(conn, world.settings.run_id))
        assert {row.id: row.state for row in rows} == {"w8": "draining", "w9": "starting"}


async def test_a_lost_worker_is_suspect_until_it_answers() -> None:
    class Dying(ScriptedUpstream):
        alive = False

        async def healthy(self) -> bool:
            return self.alive

    upstream = Dying([[1]], failures=[Failure()])
    table = WorkerTable(lambda row: upstream, wait_s=0.2)
    await table.put(WorkerRow("w", None, "scripted", "", 0, "ready"))
    from harnessgym.errors import UpstreamLost

    with pytest.raises(UpstreamLost):
        async with table.taking(WorkerFilter()):
            raise UpstreamLost("gone")
    with pytest.raises(NoWorker, match="w v0 ready"):
        async with table.taking(WorkerFilter()):
            pass
    upstream.alive = True
    await asyncio.sleep(0.3)
    async with table.taking(WorkerFilter()) as worker:
        assert worker.load == 1
    table.close()


def test_kinds_of_worker() -> None:
    from harnessgym.errors import ConfigError

    assert connect_upstream(WorkerRow("w", None, "vllm", "http://127.0.0.1:1", 4, "ready")).version == 4
    with pytest.raises(ConfigError, match=r"Worker w at .*Known: embedded, litellm"):
        connect_upstream(WorkerRow("w", None, "nothing", "http://127.0.0.1:1", 4, "ready"))


@pytest.mark.parametrize(("after", "done"), [(1, True), (0, False)])
async def test_a_call_may_be_cut_off_often_if_it_gets_on_in_between(
    make_world: MakeWorld, after: int, done: bool
) -> None:
    """Each weight update may cut off a long answer; only workers that are lost one after the other end a
    call.
    """
    async with make_world(upstreams={}) as world:
        whole = world.text("one two three four five six seven eight nine ten<|im_end|>")
        begun: list[int] = []

        def answer(prompt: Sequence[int], sampling: object) -> Sequence[int]:
            begun.append(len(prompt))
            return whole[len(prompt) - begun[0] :]

        await world.add_worker("w0", ScriptedUpstream(answer, chunk=1, failures=[Failure(after)] * 8))
        session = await world.open()
        reply = await world.chat(session.key, HI)
        assert (reply.status_code == 200) == done, reply.text
        if done:
            assert reply.json()["choices"][0]["message"]["content"].endswith("nine ten")
            assert len(begun) == 9
        else:
            assert len(begun) == 6
