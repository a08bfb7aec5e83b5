"""New cycles are collected soon, older ones when nobody waits, or after a long time all the same."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from proxies.garbage import collect, collect_little

pytestmark = pytest.mark.anyio


class Loop:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


async def found(ref: "weakref.ref[Loop]") -> bool:
    for _ in range(200):
        if ref() is None:
            return True
        await asyncio.sleep(0.01)
    return False


def make_much() -> None:
    """Have the collector count a run of the youngest generation."""
    gc.collect(0)


async def test_new_garbage_is_collected_though_calls_are_in_flight() -> None:
    collect_little()
    task = asyncio.create_task(collect(lambda: True, look_s=0.01))
    ref = weakref.ref(Loop())
    make_much()
    assert await found(ref)
    task.cancel()


@pytest.mark.parametrize(
    "longest_s", [600.0, 0.1], ids=["when nobody waits", "after a long time all the same"]
)
async def test_what_became_garbage_later_is_collected(longest_s: float) -> None:
    collect_little()
    busy = True
    task = asyncio.create_task(collect(lambda: busy, look_s=0.01, quiet_s=0.0, longest_s=longest_s))
    kept = Loop()
    ref = weakref.ref(kept)
    make_much()
    for _ in range(200):
        if gc.get_freeze_count() and not any(gc.get_count()[1:]):
            break
        await asyncio.sleep(0.01)
    del kept
    make_much()
    if longest_s == 600.0:
        await asyncio.sleep(0.1)
        assert ref() is not None
        busy = False
    assert await found(ref)
    task.cancel()


async def test_nothing_is_collected_if_nothing_was_made() -> None:
    collect_little()
    gc.collect()
    collections = gc.get_stats()[2]["collections"]
    task = asyncio.create_task(collect(lambda: False, look_s=0.01, quiet_s=0.0))
    await asyncio.sleep(0.2)
    assert gc.get_stats()[2]["collections"] - collections <= 1
    task.cancel()
