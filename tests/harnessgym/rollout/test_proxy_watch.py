"""When the proxy was away: as a node sees it, with a control server that is slow, refuses, or is another
one.
"""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from harnessgym.proxy_client import ControlClient
from harnessgym.rollout.pipeline import ProxyWatch
from tests.trainers.weights.serving import running


class Proxy:
    """The health route of a proxy."""

    def __init__(self):
        self.process, self.stopped, self.status, self.asked = "first", False, 200, 0

    async def health(self, request):
        self.asked += 1
        while self.stopped:
            await asyncio.sleep(0.02)
        return JSONResponse({"process": self.process}, status_code=self.status)

    @asynccontextmanager
    async def watched(self):
        with running(Starlette(routes=[Route("/control/health", self.health)])) as server:
            port = server.servers[0].sockets[0].getsockname()[1]
            async with ControlClient(f"http://127.0.0.1:{port}", "key") as control:
                watch = ProxyWatch(control)
                async with watch.watching():
                    yield watch

    async def answers(self, times=1):
        """Wait until it has been asked again so often."""
        before = self.asked
        while self.asked < before + times:
            await asyncio.sleep(0.02)


@pytest.fixture
def proxy():
    return Proxy()


def test_a_proxy_that_answers_was_not_away(proxy):
    async def work():
        async with proxy.watched() as watch:
            began = time.monotonic()
            await proxy.answers(3)
            return await watch.absence(began, time.monotonic())

    assert asyncio.run(work()) is None


def test_a_proxy_that_was_started_again_was_away_for_those_who_ran_then(proxy):
    async def work():
        async with proxy.watched() as watch:
            before = time.monotonic()
            await proxy.answers(2)
            proxy.process = "second"
            during = time.monotonic()
            await proxy.answers(2)
            after = time.monotonic()
            await proxy.answers(1)
            found = await watch.absence(before, during), await watch.absence(after, time.monotonic())
            return *found, await watch.absence(before, after)

    before, after, whole = asyncio.run(work())
    assert before is not None
    assert before.replaced
    assert str(before) == "The proxy was started again while the harness ran"
    assert after is None
    assert whole == before


@pytest.mark.parametrize("how", ["stopped", "refusing"])
def test_a_proxy_that_does_not_answer_for_seconds_was_away(proxy, how):
    async def work():
        async with proxy.watched() as watch:
            await proxy.answers(1)
            began = time.monotonic()
            proxy.stopped, proxy.status = how == "stopped", 503 if how == "refusing" else 200
            await asyncio.sleep(4.5)
            ended = time.monotonic()
            assert await watch.absence(began, ended) is None, "it has not come back, so nobody is judged yet"
            proxy.stopped, proxy.status = False, 200
            return began, ended, await watch.absence(began, ended)

    began, ended, absence = asyncio.run(work())
    assert absence.began <= began < ended <= absence.ended
    assert not absence.replaced
    assert f"did not answer for {absence.ended - absence.began:.1f} s" in str(absence)


def test_nobody_asks_when_nobody_watches_and_a_pause_is_no_absence(proxy):
    async def work():
        async with proxy.watched() as watch:
            await proxy.answers(1)
        asked = proxy.asked
        await asyncio.sleep(1.5)
        assert proxy.asked == asked
        watch._answered -= 100.0
        with running(Starlette(routes=[Route("/control/health", proxy.health)])) as server:
            port = server.servers[0].sockets[0].getsockname()[1]
            async with ControlClient(f"http://127.0.0.1:{port}", "key") as control:
                watch._control = control
                async with watch.watching():
                    began = time.monotonic()
                    await proxy.answers(1)
                    return await watch.absence(began - 50, time.monotonic())

    assert asyncio.run(work()) is None
