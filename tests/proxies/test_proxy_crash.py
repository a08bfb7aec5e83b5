"""A proxy process that is killed: what clients and the store see afterwards."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from harnessgym.proxy_client import ControlClient
from harnessgym.store import events
from harnessgym.store.workers import WorkerRow, upsert
from harnessgym.traces.trajectories import rows_of
from harnessgym.traces.verification.verify import verify
from tests.proxies.conftest import KEY, POLICY, MakeWorld, World

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]
SCRIPT = """
import json, sys
from proxies.app import ProxySettings, serve
serve(ProxySettings(**json.loads(sys.argv[1])))
"""


class Slow:
    """A worker kind for another process: `tests.proxies.test_proxy_crash:Slow`."""

    def __new__(cls, address: str, *, version: int) -> Any:
        from proxies.upstreams.scripted import ScriptedUpstream

        ids = json.loads(address)
        return ScriptedUpstream(lambda prompt, sampling: ids, chunk=1, delay_s=0.1, version=version)


def spawn(
    world: World, harness: socket.socket, control: socket.socket, env: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    settings: dict[str, object] = {
        "store": world.store.url,
        "run_id": world.settings.run_id,
        "policy": str(POLICY),
        "control_key": KEY,
    }
    settings |= {"fd": harness.fileno(), "control_fd": control.fileno()}
    command = [sys.executable, "-c", SCRIPT, json.dumps(settings)]
    fds = (harness.fileno(), control.fileno())
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=fds, env=env)


def end(child: "subprocess.Popen[str]", number: int) -> None:
    child.send_signal(number)
    child.wait(10)
    assert child.stdout is not None
    child.stdout.close()


async def test_a_killed_proxy_takes_up_its_intents_and_connections_queue(make_world: MakeWorld) -> None:
    async with make_world("unused<|im_end|>") as world:
        ids = world.text("one two three<|im_end|>")
        row = WorkerRow(
            "slow", world.settings.run_id, "tests.proxies.test_proxy_crash:Slow", json.dumps(ids), 0, "ready"
        )
        world.store.write(lambda conn: upsert(conn, row))
        with (
            socket.create_server(("127.0.0.1", 0)) as harness,
            socket.create_server(("127.0.0.1", 0)) as control,
        ):
            url, control_url = (
                f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in (harness, control)
            )
            child = spawn(world, harness, control)
            async with ControlClient(control_url, KEY) as client:
                session = await client.open_session(world.rollout_id, sampling={"seed": 1})
            body = {"model": "m", "messages": HI}
            asking = asyncio.create_task(
                world.http.post(f"{url}/s/{session.key}/v1/chat/completions", json=body)
            )
            call = await world.status(session, 0, "intent")
            end(child, signal.SIGKILL)
            with pytest.raises(Exception, match=r"disconnected|reset|closed"):
                await asking
            asking = asyncio.create_task(
                world.http.post(f"{url}/s/{session.key}/v1/chat/completions", json=body)
            )
            await asyncio.sleep(0.1)
            child = spawn(world, harness, control)
            response = await asking
            assert response.json()["choices"][0]["message"]["content"] == "one two three"
            assert response.json()["id"].endswith(call.id)
            (only,) = world.calls(session)
            assert list(world.completion(session, only).ids) == ids
            end(child, signal.SIGTERM)
            assert child.returncode == 0


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def test_a_session_goes_on_although_the_clock_is_set_back_between_its_calls(
    make_world: MakeWorld,
    skewed_clock: Callable[[float], dict[str, str]],
    kind: str,
    request: pytest.FixtureRequest,
) -> None:
    """Each call is of another proxy process, the first two of one whose clock is an hour ahead."""
    url = request.getfixturevalue("postgres").create_database() if kind == "postgresql" else ""
    async with make_world("unused<|im_end|>", url=url) as world:
        ids = json.dumps(world.text("one<|im_end|>"))
        row = WorkerRow("slow", world.settings.run_id, "tests.proxies.test_proxy_crash:Slow", ids, 0, "ready")
        world.store.write(lambda conn: upsert(conn, row))
        limits = {"wall_s": 1_800.0} if kind == "postgresql" else {}  # which has a clock of its own
        session, messages = await world.open(limits=limits), [*HI]
        with (
            socket.create_server(("127.0.0.1", 0)) as harness,
            socket.create_server(("127.0.0.1", 0)) as control,
        ):
            place = f"http://127.0.0.1:{harness.getsockname()[1]}/s/{session.key}/v1/chat/completions"
            for clock in (3600, 3600, 0, 0):
                child = spawn(world, harness, control, skewed_clock(clock))
                response = await world.http.post(place, json={"model": "m", "messages": messages})
                end(child, signal.SIGTERM)
                assert response.status_code == 200, response.text
                messages += [response.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]
        calls = world.calls(session)
        assert calls[2].id < calls[1].id  # the clock was set back
        assert [call.parent_call_id for call in calls] == [None, *(call.id for call in calls[:-1])]
        trajectory = world.store.read(lambda conn: rows_of(conn, world.rollout_id, group_id="g"))
        (trained,) = trajectory.rows
        assert [turn.call_id for turn in trained.turns] == [call.id for call in calls]
        assert [turn.place for turn in trained.turns] == [0, 1, 2, 3]
        happened = world.store.read(lambda conn: events.of_rollout(conn, world.rollout_id, "llm_call"))
        assert [event.id for event in happened] == [call.id for call in calls]
        found = verify(world.store).findings
        assert {finding.kind for finding in found} == {
            "span_version"
        }  # nobody published what the engine says it serves
