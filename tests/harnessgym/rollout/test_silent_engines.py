"""Rollouts whose engine is there and does not answer: never a reward of zero."""

import signal
import socket

import pytest
from sqlalchemy import select

from harnessgym.store.tables import calls, rewards
from proxies.upstreams.vllm import VllmUpstream
from tests.support.engine_process import EngineProcess

pytestmark = pytest.mark.anyio


def ends(line):
    return [(row["cause"], row["stop_reason"], row["verdict"]) for row in line.rollouts()]


def values(line):
    return line.store.read(lambda conn: list(conn.execute(select(rewards.c.value)).scalars()))


async def test_a_rollout_that_a_stopped_engine_keeps_waiting_is_run_again_and_not_graded(make_line):
    with EngineProcess() as engine:
        engine.signal(signal.SIGSTOP)
        async with make_line("lists", tasks="Hurried", upstream=VllmUpstream(engine.address)) as line:

            def enough(line):
                if len(line.rollouts()) >= 2:
                    engine.signal(signal.SIGCONT)
                return line.groups().get("complete", 0) == 1

            await line.run(enough, timeout_s=120)
            failed, finished = line.rollouts()[:2], line.rollouts()[2:]
            assert ends(line)[:2] == [("engine_silent", "engine_error", "infrastructure_error")] * 2
            assert all("without a token for" in row["detail"] for row in failed)
            assert [(row["cause"], row["verdict"]) for row in finished] == [(None, "valid")] * 2
            assert [member.reward for member in line.complete()[0].members] == [1.0, 1.0]
            assert values(line) == [1.0, 1.0]


@pytest.mark.parametrize("harness", ["lists", "gives_up"])
async def test_an_engine_behind_a_half_open_connection_is_never_a_reward(make_line, harness):
    """Also of a harness that gives the call up and ends well."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        upstream = VllmUpstream(f"http://127.0.0.1:{listener.getsockname()[1]}")
        async with make_line(harness, tasks="Hurried", upstream=upstream, max_attempts=1) as line:
            await line.run(lambda line: len(line.rollouts()) >= 2, timeout_s=120)
            assert set(ends(line)) == {("engine_silent", "engine_error", "infrastructure_error")}
            assert line.groups().get("complete", 0) == 0
            assert values(line) == []


async def test_a_policy_that_talks_until_its_time_is_over_is_graded(make_line):
    with EngineProcess(pause_s=0.5) as engine:
        async with make_line("lists", tasks="Hurried", upstream=VllmUpstream(engine.address)) as line:
            await line.run(lambda line: line.groups().get("complete", 0) == 1, timeout_s=120)
            assert ends(line) == [("harness_timeout", "timeout", "valid")] * 2
            assert values(line) == [0.0, 0.0]
            (status,) = line.store.read(lambda conn: set(conn.execute(select(calls.c.status)).scalars()))
            assert status == "aborted"
