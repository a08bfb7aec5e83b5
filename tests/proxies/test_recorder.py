"""An outcome may be queued while its intent is not committed yet; it is stored behind it or not at all."""

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from harnessgym.errors import StoreError, StoreUnavailable
from harnessgym.store import calls, new_id
from harnessgym.store.calls import CallIntent, CallOutcome, Segment
from harnessgym.store.trace_store import TraceStore, Work
from harnessgym.tokens import hash_ids
from proxies.recorder import Recorder
from tests.proxies.conftest import MakeWorld, World

pytestmark = pytest.mark.anyio


def one_call(world: World, session_id: str) -> tuple[CallIntent, Segment, CallOutcome]:
    prompt = Segment(new_id(), session_id, "prompt", None, (1, 2))
    length, digest = len(prompt.ids), hash_ids(prompt.ids)
    intent = CallIntent(
        new_id(),
        session_id,
        world.rollout_id,
        0,
        "chat",
        "policy",
        "keep",
        "r",
        "c",
        length,
        digest,
        prompt.id,
        "e",
    )
    said = Segment(new_id(), session_id, "completion", prompt.id, (3,), (-0.5,))
    return intent, prompt, CallOutcome(intent.id, said, (), "a", "stop", None, "e", {}, {})


async def test_an_outcome_waits_for_an_intent_that_is_tried_again(make_world: MakeWorld) -> None:
    async with make_world() as world:
        session, intended = await world.open(), Future[None]()
        intent, prompt, outcome = one_call(world, session.session_id)
        finishing = asyncio.create_task(Recorder(world.store).finish(outcome, None, intended))
        await asyncio.wait([finishing], timeout=0.2)
        assert not finishing.done()
        world.store.write(lambda conn: calls.intend(conn, intent, prompt))
        intended.set_result(None)
        await finishing
        assert [call.status for call in world.calls(session)] == ["committed"]


@pytest.mark.parametrize("known", [True, False])
async def test_an_outcome_fails_with_its_intent(make_world: MakeWorld, known: bool) -> None:
    async with make_world() as world:
        session, intended = await world.open(), Future[None]()
        _, _, outcome = one_call(world, session.session_id)
        failed = StoreError("the disk is full")
        if known:
            intended.set_exception(failed)
        finishing = asyncio.create_task(Recorder(world.store).finish(outcome, None, intended))
        await asyncio.wait([finishing], timeout=0.2)
        if not known:
            intended.set_exception(failed)
        with pytest.raises(StoreError, match="the disk is full"):
            await finishing
        assert not world.calls(session)
        assert not world.segments(session)


class Vanishing:
    """A store whose server commits what it is given, and goes away before it says so."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self.asked = 0

    def submit(self, work: Work[Any], *, wake: bool = True) -> "Future[Any]":
        self.asked += 1
        self._store.write(work)
        future = Future[Any]()
        future.set_exception(StoreUnavailable("It went away while it committed."))
        return future


async def test_an_outcome_that_may_be_stored_is_not_written_again(make_world: MakeWorld) -> None:
    async with make_world() as world:
        session, intended = await world.open(), Future[None]()
        intent, prompt, outcome = one_call(world, session.session_id)
        world.store.write(lambda conn: calls.intend(conn, intent, prompt))
        vanishing = Vanishing(world.store)
        with pytest.raises(StoreUnavailable):
            await Recorder(vanishing).finish(outcome, None, intended)  # type: ignore[arg-type]
        assert vanishing.asked == 1


async def test_a_session_that_was_opened_here_is_served_without_a_look_at_the_store(
    make_world: MakeWorld,
) -> None:
    async with make_world("one<|im_end|>") as world:
        session = await world.open()
        world.store.write(lambda conn: conn.exec_driver_sql("UPDATE sessions SET key_hash = 'another'"))
        assert (await world.chat(session.key, [{"role": "user", "content": "hi"}])).status_code == 200


async def test_an_intent_is_written_soon_and_an_outcome_at_once(make_world: MakeWorld) -> None:
    async with make_world() as world:
        session, recorder = await world.open(), Recorder(world.store)
        intent, prompt, outcome = one_call(world, session.session_id)
        intended = recorder.intend(intent, prompt, b"{}")
        assert not intended.done()
        await asyncio.wait_for(recorder.wait(intended), 5.0)  # nothing else wakes the writer
        await recorder.finish(outcome, None, intended)
        intent, prompt, outcome = one_call(world, session.session_id)
        intent = replace(intent, ordinal=1)
        await recorder.finish(outcome, None, recorder.intend(intent, prompt, b"{}"))
        assert [call.status for call in world.calls(session)] == ["committed", "committed"]
