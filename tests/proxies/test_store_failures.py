"""What clients meet when the proxy's store restarts, stays away, is locked or full: errors to try again
after, and no loss.
"""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harnessgym.store.calls import FINISHED
from harnessgym.traces.verification.verify import verify
from tests.proxies.conftest import KEY, MakeWorld, World
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.anyio
Messages = list[dict[str, Any]]
ROUTES = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "gemini": "/v1beta/models/m:generateContent",
}
UNAVAILABLE = {"chat": 503, "responses": 503, "messages": 529, "gemini": 503}


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresServer]:
    """A server that a test may end."""
    with PostgresServer() as cluster:
        yield cluster


async def ask(
    world: World, key: str, dialect: str = "chat", text: str = "hi", **fields: Any
) -> httpx.Response:
    said = [{"role": "user", "content": text}]
    body: dict[str, Any] = {
        "chat": {"model": "m", "messages": said},
        "responses": {"model": "m", "input": text},
        "messages": {"model": "m", "max_tokens": 50, "messages": said},
        "gemini": {"contents": [{"role": "user", "parts": [{"text": text}]}]},
    }[dialect]
    return await world.http.post(f"{world.proxy.url}/s/{key}{ROUTES[dialect]}", json=body | fields)


def assert_refused_for_now(response: httpx.Response, dialect: str, why: str) -> None:
    assert response.status_code == UNAVAILABLE[dialect], response.text
    assert int(response.headers["retry-after"]) >= 1
    error = response.json()["error"]
    assert why in error["message"]
    kind = {"messages": ("type", "overloaded_error"), "gemini": ("status", "UNAVAILABLE")}
    field, wanted = kind.get(dialect, ("code", "service_unavailable"))
    assert error[field] == wanted


class Talk:
    """A conversation whose client tries again, and knows every answer that it got."""

    def __init__(self, world: World, key: str) -> None:
        self.world, self.key, self.messages, self.got = world, key, Messages(), list[str]()

    async def turn(self, **fields: Any) -> httpx.Response:
        """Ask once; what is answered belongs to the conversation."""
        if not self.messages or self.messages[-1]["role"] == "assistant":
            self.messages.append({"role": "user", "content": f"Turn {len(self.got)}."})
        response = await self.world.chat(self.key, self.messages, **fields)
        if response.status_code == 200 and not fields:
            self.messages.append(response.json()["choices"][0]["message"])
            self.got.append(response.json()["id"][-24:])
        return response

    async def assert_goes_on(self) -> None:
        """Within a few seconds, without anybody's help."""
        before, deadline = len(self.got), time.monotonic() + 60
        while len(self.got) == before:
            assert time.monotonic() < deadline
            await self.turn()

    def assert_all_is_there(self, session: Any) -> None:
        found = {call.id: call for call in self.world.calls(session)}
        assert {found[call_id].status for call_id in self.got} <= set(FINISHED)
        assert len([call for call in found.values() if call.status in FINISHED]) == len(self.got)
        parents = [found[call_id].parent_call_id for call_id in self.got]
        assert parents == [None, *self.got[:-1]]
        assert {finding.kind for finding in verify(self.world.store).findings} <= {
            "span_version"
        }  # no version is published


@pytest.mark.postgres
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_calls_wait_for_a_server_that_restarts(
    make_world: MakeWorld, own: PostgresServer, how: signal.Signals
) -> None:
    async with make_world("one<|im_end|>", "two<|im_end|>", url=own.create_database()) as world:
        session = await world.open()
        talk = Talk(world, session.key)
        await talk.turn()
        world.scripted("w0").gate.clear()
        under_way = asyncio.create_task(talk.turn())
        await world.status(session, 1, "intent")
        await asyncio.to_thread(own.stop, how)
        world.scripted("w0").gate.set()
        began = asyncio.create_task(ask(world, session.key, text="Another conversation."))
        await asyncio.sleep(0.5)
        assert not under_way.done()
        assert not began.done()
        await asyncio.to_thread(own.start)
        assert (await under_way).status_code == (await began).status_code == 200
        found = world.calls(session)
        assert [call.status in FINISHED for call in found] == [True] * 3
        assert found[1].parent_call_id == talk.got[0]
        assert found[1].id == talk.got[1]


@pytest.mark.postgres
async def test_a_server_that_stays_away_is_an_error_that_is_tried_again(
    make_world: MakeWorld, own: PostgresServer
) -> None:
    async with make_world("one<|im_end|>", url=own.create_database() + "&connect_timeout=2") as world:
        session, unknown = await world.open(), await world.open()
        talk = Talk(world, session.key)
        await talk.turn()
        await asyncio.to_thread(own.stop)
        try:
            began = time.monotonic()
            refused = await asyncio.gather(
                *(ask(world, session.key, dialect, text=dialect) for dialect in ROUTES)
            )
            assert time.monotonic() - began < 6
            for dialect, response in zip(ROUTES, refused, strict=True):
                assert_refused_for_now(response, dialect, "does not answer")
            began = time.monotonic()
            assert_refused_for_now(await ask(world, unknown.key), "chat", "Start it, or correct the URL.")
            opening = {"rollout_id": world.rollout_id}
            headers = {"authorization": f"Bearer {KEY}"}
            control = await world.http.post(
                f"{world.proxy.control_address}/control/sessions", json=opening, headers=headers
            )
            assert (control.status_code, "does not answer" in control.text) == (503, True)
            assert time.monotonic() - began < 3, "who asks later hears of it at once"
        finally:
            await asyncio.to_thread(own.start)
        await talk.assert_goes_on()
        assert (await ask(world, unknown.key)).status_code == 200
        talk.assert_all_is_there(session)


HOLDER = """
import sqlite3, sys
lock = sqlite3.connect(sys.argv[1], isolation_level=None)
lock.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.asynccontextmanager
async def held(path: Path) -> AsyncIterator[None]:
    """Another process has the database locked."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == "held\n"
        yield
        holder.communicate()


async def test_a_locked_database_holds_calls_back_and_lets_them_through_later(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    async with make_world("one<|im_end|>", max_in_flight=3) as world:
        session = await world.open()
        async with held(tmp_path / "traces.db"):
            waiting = [asyncio.create_task(ask(world, session.key, text=str(number))) for number in range(3)]
            await asyncio.sleep(0.5)
            assert not any(task.done() for task in waiting)
            began = time.monotonic()
            more = await ask(world, session.key, text="more")
            assert (more.status_code, more.headers["retry-after"]) == (429, "1")
            # It is held for a second, as every refusal for want of room, and not for as long as the lock.
            assert 1 <= time.monotonic() - began < 2
        assert [(await task).status_code for task in waiting] == [200] * 3
        assert (await ask(world, session.key, text="more")).status_code == 200
        assert {call.status for call in world.calls(session)} <= set(FINISHED)
        assert len(world.calls(session)) == 4


async def test_a_database_that_stays_locked_is_an_error_that_is_tried_again(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    path = tmp_path / "traces.db"
    async with make_world("one<|im_end|>", url=f"sqlite:///{path}?timeout=0.5") as world:
        session = await world.open()
        talk = Talk(world, session.key)
        await talk.turn()
        async with held(path):
            began = time.monotonic()
            refused = await asyncio.gather(
                *(ask(world, session.key, dialect, text=dialect) for dialect in ROUTES)
            )
            assert time.monotonic() - began < 4
            for dialect, response in zip(ROUTES, refused, strict=True):
                assert_refused_for_now(
                    response, dialect, "stayed locked for 0.5 s. End the process that holds it."
                )
        await talk.assert_goes_on()
        talk.assert_all_is_there(session)


async def test_a_full_disk_is_an_error_that_is_tried_again(make_world: MakeWorld, small_disk: Path) -> None:
    async with make_world("one two three<|im_end|>", url=f"sqlite:///{small_disk}/traces.db") as world:
        session = await world.open()
        talk = Talk(world, session.key)
        await talk.turn()
        with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(b"x" * 4_096)
        response = await talk.turn()
        while response.status_code == 200:
            response = await talk.turn()
        assert_refused_for_now(response, "chat", "is full")
        for dialect in ROUTES:
            assert_refused_for_now(
                await ask(world, session.key, dialect),
                dialect,
                "Free space and go on: what was committed is safe",
            )
        streamed = (await talk.turn(stream=True)).content.decode()
        assert "is full" in streamed
        assert '"finish_reason":"' not in streamed.replace(" ", "")
        (small_disk / "ballast").unlink()
        await talk.assert_goes_on()
        await talk.turn()
        talk.assert_all_is_there(session)
        assert world.store.read(lambda conn: conn.exec_driver_sql("PRAGMA integrity_check").scalar()) == "ok"


async def test_what_a_stream_has_shown_is_ended_by_an_error(make_world: MakeWorld, tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    async with make_world("one two three four five<|im_end|>", url=f"sqlite:///{path}?timeout=0.5") as world:
        session = await world.open()
        async with held(path):
            response = await ask(world, session.key, stream=True)
        *shown, last = [
            json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")
        ]
        assert "".join(event["choices"][0]["delta"].get("content", "") for event in shown).startswith(
            "one two"
        )
        assert [event["choices"][0]["finish_reason"] for event in shown] == [None] * len(shown)
        assert "stayed locked" in last["error"]["message"]
        assert (await ask(world, session.key)).status_code == 200
