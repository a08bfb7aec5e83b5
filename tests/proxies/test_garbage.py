"""Cycles are collected when nobody waits, or after a long time all the same."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from proxies.garbage import collect_in_quiet, collect_little

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


async def test_garbage_is_collected_when_nobody_waits() -> None:
    collect_little()
    busy = True
    task = asyncio.create_task(collect_in_quiet(lambda: busy, look_s=0.01, least=0))
    ref = weakref.ref(Loop())
    await asyncio.sleep(0.2)
    assert ref() is not None
    busy = False
    assert await found(ref)
    task.cancel()


async def test_garbage_is_collected_after_a_long_time_all_the_same() -> None:
    collect_little()
    task = asyncio.create_task(collect_in_quiet(lambda: True, look_s=0.01, longest_s=0.1, least=0))
    assert await found(weakref.ref(Loop()))
    task.cancel()


async def test_nothing_is_collected_if_little_was_made() -> None:
    collect_little()
    task = asyncio.create_task(collect_in_quiet(lambda: False, look_s=0.01, least=10**9))
    ref = weakref.ref(Loop())
    await asyncio.sleep(0.2)
    assert ref() is not None
    task.cancel()
