"""Sessions share the event loop and a few threads, whatever one of them asks for."""

import asyncio
import threading

import pytest

from proxies.fairness import FairThreads, HeldRefusals, Turns

pytestmark = pytest.mark.anyio


async def test_one_request_of_each_session_begins_in_a_turn_of_the_loop() -> None:
    turns, begun = Turns(), list[str]()

    async def request(owner: str) -> None:
        await turns.take(owner)
        begun.append(owner)

    many = [asyncio.create_task(request("many")) for _ in range(50)]
    await asyncio.sleep(0)
    await asyncio.create_task(request("one"))
    assert begun.index("one") < 5
    await asyncio.gather(*many)
    assert begun.count("many") == 50


async def test_a_request_that_no_longer_waits_takes_no_turn() -> None:
    turns = Turns()
    waiting = [asyncio.create_task(turns.take("a")) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.wait_for(waiting[2], 5)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.wait_for(turns.take("a"), 5)


@pytest.fixture
async def threads():
    threads = FairThreads(1)
    yield threads
    threads.close()


async def test_owners_take_turns(threads: FairThreads) -> None:
    order, gate = list[str](), threading.Event()

    def work(name: str) -> str:
        gate.wait(10)
        order.append(name)
        return name

    asked = [("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")]
    running = [asyncio.create_task(threads.run(owner, lambda name=name: work(name))) for owner, name in asked]
    await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*running) == [name for _, name in asked]
    assert order == ["a1", "b1", "c1", "a2", "a3"]


async def test_errors_reach_who_asked_and_the_next_work_goes_on(threads: FairThreads) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await threads.run("a", fail)
    assert await threads.run("a", lambda: 1) == 1


async def test_work_that_nobody_waits_for_does_not_begin(threads: FairThreads) -> None:
    gate, done = threading.Event(), list[int]()
    first = asyncio.create_task(threads.run("a", lambda: gate.wait(10)))
    second = asyncio.create_task(threads.run("a", lambda: done.append(2)))
    third = asyncio.create_task(threads.run("a", lambda: done.append(3)))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, third)
    assert done == [3]


async def test_an_owner_has_one_thread_at_a_time() -> None:
    threads, gate, running = FairThreads(2), threading.Event(), list[str]()

    def work(name: str) -> None:
        running.append(name)
        gate.wait(10)

    tasks = [asyncio.create_task(threads.run("a", lambda: work("a"))) for _ in range(2)]
    tasks.append(asyncio.create_task(threads.run("b", lambda: work("b"))))
    while len(running) < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert sorted(running) == ["a", "b"]
    gate.set()
    await asyncio.gather(*tasks)
    threads.close()


async def test_work_that_has_not_begun_when_the_threads_are_closed_is_cancelled() -> None:
    threads, gate = FairThreads(1), threading.Event()
    begun = asyncio.create_task(threads.run("a", lambda: gate.wait(10)))
    await asyncio.sleep(0.05)
    # Another thread is free as far as the queue knows, but the pool has only this one.
    threads._free += 1
    waiting = asyncio.create_task(threads.run("b", lambda: True))
    await asyncio.sleep(0.05)
    threads.close()
    gate.set()
    assert await asyncio.wait_for(begun, 10)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 10)


async def test_refusals_that_come_at_once_are_answered_one_after_another() -> None:
    held, answered = HeldRefusals(hold_s=0.2, of_one=4, of_all=6), list[float]()
    loop = asyncio.get_running_loop()
    begun = loop.time()

    async def refused(owner: str) -> bool:
        answer = await held.wait(owner)
        answered.append(loop.time() - begun)
        return answer

    tasks = [asyncio.create_task(refused(owner)) for owner in "aaaaabbb"]
    await asyncio.sleep(0)
    # The fifth of one owner and the seventh of all are not held.
    assert [task.done() for task in tasks] == [False] * 4 + [True] + [False] * 2 + [True]
    assert [await task for task in tasks] == [True] * 4 + [False] + [True] * 2 + [False]
    waits = sorted(answered)[2:]
    assert waits[0] >= 0.19
    assert waits[-1] >= 0.2 + 3 * 0.2 / 4 - 0.01
    assert await held.wait("a")
