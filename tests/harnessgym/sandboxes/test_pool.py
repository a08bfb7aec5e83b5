"""The warm pool, over things that are cheap to make."""

import asyncio

import pytest

from harnessgym.errors import SandboxError
from harnessgym.sandboxes.pool import Demand, WarmPool

pytestmark = pytest.mark.anyio


class Cups:
    """Makes cups, slowly; knows which exist."""

    def __init__(self, make_s=0.02, room=100):
        self.make_s, self.space, self.made = make_s, room, 0
        self.there, self.asleep, self.sick = set(), set(), set()
        self.broken = False

    async def make(self, key):
        await asyncio.sleep(self.make_s)
        if self.broken:
            raise SandboxError("No clay.")
        self.made += 1
        cup = (key, self.made)
        self.there.add(cup)
        return cup

    async def park(self, cup):
        self.asleep.add(cup)

    async def wake(self, cup):
        self.asleep.discard(cup)
        return cup not in self.sick

    async def discard(self, cup):
        self.there.discard(cup)
        self.asleep.discard(cup)

    def room(self):
        return self.space


async def until(condition, timeout_s=30.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


async def test_the_second_claim_is_warm():
    cups = Cups()
    async with WarmPool(cups, most=4) as pool:
        first = await pool.claim("a")
        await until(lambda: pool.counts.parked)
        second = await pool.claim("a")
        assert first != second
        assert (pool.counts.warm, pool.counts.cold) == (1, 1)
        for cup in (first, second):
            await cups.discard(cup)
    assert cups.there == set()


async def test_keys_do_not_stand_for_each_other():
    cups = Cups()
    async with WarmPool(cups, most=4) as pool:
        await pool.claim("a")
        await until(lambda: pool.counts.parked)
        assert (await pool.claim("b"))[0] == "b"
        assert pool.counts.cold == 2


async def test_more_are_parked_the_faster_they_are_claimed():
    quiet, busy = Demand(make_s=0.5), Demand(make_s=0.5)
    quiet.claimed(quiet.at)
    for n in range(40):
        busy.claimed(busy.at + n * 0.001)
    assert 1 <= quiet.wanted(quiet.at) < busy.wanted(busy.at) <= 6
    assert busy.wanted(busy.at + 200) == 0


async def test_a_pool_is_bounded_by_its_number_and_by_the_machine():
    for most, room, bound in ((3, 100, 3), (50, 2, 2), (0, 100, 0)):
        cups = Cups(make_s=0.0, room=room)
        async with WarmPool(cups, most=most) as pool:
            pool.warm_up("a", 40)
            await asyncio.sleep(0.1)
            assert len(cups.there) <= max(bound, 0)
            if room == 2:
                assert len(cups.there) == 2


async def test_what_fell_ill_while_parked_is_discarded_and_not_handed_out():
    cups = Cups()
    async with WarmPool(cups, most=4) as pool:
        pool.warm_up("a", 2)
        await until(lambda: pool.counts.parked >= 2)
        cups.sick = set(cups.asleep)
        cup = await pool.claim("a")
        assert cup not in cups.sick
        assert pool.counts.sick == 2
        assert not cups.sick & cups.there


async def test_what_nobody_claims_is_given_up():
    cups = Cups()
    async with WarmPool(cups, most=4, idle_s=0.05) as pool:
        cup = await pool.claim("a")
        await until(lambda: pool.counts.parked == 0 and cups.there == {cup})


async def test_less_room_shrinks_the_pool():
    cups = Cups(make_s=0.0)
    async with WarmPool(cups, most=4) as pool:
        pool.warm_up("a", 4)
        await until(lambda: pool.counts.parked == 4)
        cups.space = -3
        await until(lambda: pool.counts.parked <= 1)


async def test_when_none_can_be_made_the_claim_says_so_and_the_pool_lives_on():
    cups = Cups()
    async with WarmPool(cups, most=2) as pool:
        cups.broken = True
        with pytest.raises(SandboxError, match="No clay"):
            await pool.claim("a")
        cups.broken = False
        assert await pool.claim("a")


async def test_closing_ends_the_parked_and_those_in_the_making():
    cups = Cups(make_s=0.05)
    async with WarmPool(cups, most=4) as pool:
        pool.warm_up("a", 4)
        await until(lambda: pool.counts.parked)
    assert cups.there == set()


async def test_a_cancelled_claim_leaves_nothing_behind():
    class Sleepy(Cups):
        async def wake(self, cup):
            await asyncio.sleep(10)
            return True

    cups = Sleepy()
    async with WarmPool(cups, most=1, makers=1) as pool:
        pool.warm_up("a", 1)
        await until(lambda: pool.counts.parked == 1)
        (parked,) = cups.asleep
        claim = asyncio.create_task(pool.claim("a"))
        await asyncio.sleep(0.02)
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        assert parked not in cups.there


async def test_claims_while_it_shrinks_do_not_end_its_keeper():
    class Slow(Cups):
        async def discard(self, cup):
            await asyncio.sleep(0.05)
            await super().discard(cup)

    cups = Slow(make_s=0.0)
    async with WarmPool(cups, most=4) as pool:
        pool.warm_up("a", 4)
        await until(lambda: pool.counts.parked == 4)
        cups.space = -4
        await until(lambda: pool.counts.parked == 3)  # it has begun
        claimed = [await pool.claim("a") for _ in range(3)]
        cups.space = 100
        pool.warm_up("a", 4)
        await until(lambda: pool.counts.parked == 4)
        cups.space = -4
        await until(lambda: pool.counts.parked == 0)
        assert len(claimed) == 3


async def test_a_claim_waits_for_no_end_of_what_fell_ill():
    class Slow(Cups):
        async def discard(self, cup):
            await asyncio.sleep(0.3)
            await super().discard(cup)

    cups = Slow(make_s=0.0)
    async with WarmPool(cups, most=2) as pool:
        pool.warm_up("a", 2)
        await until(lambda: pool.counts.parked == 2)
        cups.sick = set(cups.asleep)
        async with asyncio.timeout(0.2):
            cup = await pool.claim("a")
        assert cup not in cups.sick
    assert cups.there == {cup}
