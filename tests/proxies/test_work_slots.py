"""A session has so many pieces of work under way, whatever it has open."""

import asyncio
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

from proxies.work_slots import WorkSlots
from tests.proxies.conftest import MakeWorld
from tests.proxies.connections import connections, head_of

pytestmark = pytest.mark.anyio


class Pieces:
    """Pieces of one owner that run until they are let go."""

    def __init__(self, slots: WorkSlots, owner: str = "many") -> None:
        self.slots, self.owner = slots, owner
        self.running = 0
        self.gate = asyncio.Event()
        self.order: list[str] = []

    def begin(self, name: str = "", *, start: bool = False) -> "asyncio.Task[None]":
        async def run() -> None:
            async with self.slots.piece(self.owner, start=start):
                self.running += 1
                self.order.append(name)
                await self.gate.wait()
                self.running -= 1

        return asyncio.create_task(run())


async def turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def ask(stack: ExitStack, slots: WorkSlots, owner: str, number: int) -> None:
    for _ in range(number):
        stack.enter_context(slots.request(owner))


async def test_a_start_that_waits_for_an_intent_has_it_committed_soon() -> None:
    hurried = list[Future[None]]()
    intents = [Future[None]() for _ in range(2)]
    slots = WorkSlots(alone=8, beside=2, hurry=lambda: hurried.append(intents[0]))
    with ExitStack() as requests:
        ask(requests, slots, "many", 3)
        ask(requests, slots, "other", 1)
        for intent in intents:
            slots.call_begun("many", intent)
        assert not hurried
        pieces = Pieces(slots)
        task = pieces.begin(start=True)
        await turns()
        assert (pieces.running, hurried) == (0, intents[:1])
        intents[0].set_result(None)
        await turns()
        assert pieces.running == 1
        pieces.gate.set()
        await task


async def test_an_owner_beside_others_has_fewer_pieces_under_way_than_alone() -> None:
    slots = WorkSlots(alone=8, beside=2)
    with ExitStack() as alone:
        ask(alone, slots, "many", 20)
        pieces = Pieces(slots)
        tasks = [pieces.begin() for _ in range(20)]
        await turns()
        assert pieces.running == 8
        with slots.request("other"):
            pieces.gate.set()
            await asyncio.gather(*tasks)
            pieces.gate.clear()
            tasks = [pieces.begin() for _ in range(20)]
            await turns()
            assert pieces.running == 2
            # The other one does not wait.
            other = Pieces(slots, "other")
            begun = other.begin()
            await turns(1)
            assert other.running == 1
            other.gate.set()
            await begun
        pieces.gate.set()
        await asyncio.gather(*tasks)


async def test_one_turn_of_the_loop_does_not_do_what_all_of_an_owners_pieces_need() -> None:
    """Pieces that wait for nothing: as many as there are slots run in a turn, not all of them."""
    slots, done = WorkSlots(beside=2), 0

    async def piece() -> None:
        nonlocal done
        async with slots.piece("many"):
            done += 1

    with ExitStack() as stack:
        ask(stack, slots, "many", 100)
        ask(stack, slots, "other", 1)
        tasks = [asyncio.create_task(piece()) for _ in range(100)]
        for turn in range(1, 11):
            await asyncio.sleep(0)
            assert done <= 2 * turn
        await asyncio.gather(*tasks)
        assert done == 100


async def test_calls_that_have_begun_come_before_new_ones() -> None:
    slots = WorkSlots(beside=1)
    with ExitStack() as stack:
        ask(stack, slots, "many", 5)
        ask(stack, slots, "other", 1)
        pieces = Pieces(slots)
        tasks = [pieces.begin("first")]
        await turns()
        tasks += [
            pieces.begin(name, start=name.startswith("start")) for name in ("start1", "a", "start2", "b")
        ]
        await turns()
        pieces.gate.set()
        await asyncio.gather(*tasks)
        assert pieces.order == ["first", "a", "b", "start1", "start2"]


async def test_calls_begin_no_faster_than_the_store_takes_their_intents() -> None:
    slots = WorkSlots(beside=2)
    intents = [Future[None]() for _ in range(3)]
    with ExitStack() as stack:
        ask(stack, slots, "many", 5)
        ask(stack, slots, "other", 1)
        for intent in intents:
            slots.call_begun("many", intent)
        pieces = Pieces(slots)
        start, other = pieces.begin(start=True), pieces.begin()
        await turns()
        assert pieces.running == 1  # what has begun does not wait for intents
        pieces.gate.set()
        await other
        await turns()
        assert not start.done()
        for intent in intents:
            await asyncio.to_thread(intent.set_result, None)
        await asyncio.wait_for(start, 5)
        for _ in intents:
            slots.call_ended("many")


async def test_a_piece_that_is_cancelled_gives_its_slot_back() -> None:
    slots = WorkSlots(beside=1)
    with ExitStack() as stack:
        ask(stack, slots, "many", 5)
        ask(stack, slots, "other", 1)
        pieces = Pieces(slots)
        running = pieces.begin()
        await turns()
        waiting = [pieces.begin() for _ in range(3)]
        await turns()
        waiting[0].cancel()
        running.cancel()
        # It is given the slot and cancelled in the same turn.
        await turns(2)
        waiting[1].cancel()
        await turns()
        assert pieces.running == 2  # counted by what was cancelled, which did not end
        pieces.gate.set()
        await asyncio.wait_for(waiting[2], 5)
    assert slots._owners == {}


async def test_a_session_does_not_wait_for_hundreds_of_answers_to_another(make_world: MakeWorld) -> None:
    async with make_world("Yes.<|im_end|>") as world:
        many, one = await world.open(), await world.open()
        engine = world.scripted("w0")
        engine.gate.clear()
        async with connections(world, many, map(str, range(200)), stream=True) as readers:
            while len(engine.asked) < 200:
                await asyncio.sleep(0.01)
            (session,) = [each for each in world.proxy.sessions.open() if each.row.id == many.session_id]
            engine.gate.set()
            assert (await world.chat(one.key, [{"role": "user", "content": "hi"}])).status_code == 200
            assert len(session.live) > 100
            assert {(await head_of(reader)).split(" ")[1] for reader in readers} == {"200"}
