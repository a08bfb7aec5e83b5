from contextlib import asynccontextmanager

import anyio
import pytest

from harnessgym.gym.portal import Portal


async def double(value):
    await anyio.sleep(0)
    return 2 * value


async def fail():
    raise ValueError("from inside")


@asynccontextmanager
async def opened(log):
    log.append("open")
    yield 7
    log.append("close")


def test_calls_cross_over_and_back():
    with Portal() as portal:
        assert portal.call(double, 4) == 8
        with pytest.raises(ValueError, match="from inside"):
            portal.call(fail)


def test_async_context_managers_become_sync():
    log = []
    with Portal() as portal, portal.enter(opened(log)) as value:
        assert (value, log) == (7, ["open"])
    assert log == ["open", "close"]
