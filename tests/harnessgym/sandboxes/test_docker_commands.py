"""Commands in a container: paused, side by side, and without their supervisor."""

import asyncio
import os
import subprocess
import time

import pytest

from harnessgym.task import Limits

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


async def test_a_sandbox_is_paused_and_its_time_stands_still(docker):
    async with docker.open(Limits()) as sandbox:
        script = "import time\nfor n in range(30):\n  open('ticks', 'w').write(str(n))\n  time.sleep(0.05)"
        run = asyncio.create_task(sandbox.exec(["python", "-c", script], timeout_s=3.5))
        await asyncio.sleep(0.7)
        await sandbox.pause()
        before = await sandbox.read("ticks")
        await asyncio.sleep(4)
        assert await sandbox.read("ticks") == before
        await sandbox.resume()
        assert (await run).ok
        assert await sandbox.read("ticks") == b"29"


async def test_commands_of_one_sandbox_end_apart(docker):
    mark = f"2{os.getpid()}{time.monotonic_ns() % 10**6}"
    async with docker.open(Limits()) as sandbox:
        long = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 1; echo long"]))
        short = await sandbox.exec(["sh", "-c", f"setsid sleep {mark} & exec sleep 5"], timeout_s=0.3)
        assert short.timed_out
        lines = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True).stdout
        assert f"sleep {mark}" not in lines
        assert (await long).stdout == b"long\n"


async def test_a_killed_supervisor_takes_its_commands_along_and_is_no_result(docker):
    mark = f"1{os.getpid()}{time.monotonic_ns() % 10**6}"
    async with docker.open(Limits()) as sandbox:
        with pytest.raises(Exception, match="supervisor"):
            await sandbox.exec(["sh", "-c", f"setsid sleep {mark} & kill -9 $PPID; sleep 5"], user="root")
        lines = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True).stdout
        assert f"sleep {mark}" not in lines
        assert not (await sandbox.exec(["sh", "-c", "kill -9 $PPID"])).ok  # the harness's user cannot


async def test_a_process_whose_first_thread_has_ended_is_killed_with_the_others(docker):
    mark = f"3{os.getpid()}{time.monotonic_ns() % 10**6}"
    script = f"""
import ctypes, os, threading, time
if os.fork() == 0:
    os.setsid()
    threading.Thread(target=time.sleep, args=({mark},)).start()
    ctypes.CDLL(None).syscall({{"x86_64": 60, "aarch64": 93}}[os.uname().machine], 0)
time.sleep(0.5)
"""
    async with docker.open(Limits()) as sandbox:
        other = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 4; echo whole"]))
        result = await sandbox.exec(["python", "-c", script])
        assert result.exit_code == 0
        lines = subprocess.run(["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True).stdout
        assert mark not in lines
        assert (await other).stdout == b"whole\n"  # PID 1 did not have to end everybody


async def test_a_paused_sandbox_can_be_emptied(docker):
    async with docker.open(Limits()) as sandbox:
        run = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 0.5; echo x > x; sleep 1000"]))
        await asyncio.sleep(0.2)
        await sandbox.pause()
        await asyncio.sleep(0.5)
        async with asyncio.timeout(10):
            await sandbox.kill_all()
            assert (await run).signal == 9
        assert (await sandbox.exec(["true"])).ok


async def test_a_starved_supervisor_does_not_make_an_error_of_a_timeout(docker):
    script = """
import os
for _ in range(240):
    if os.fork() == 0:
        break
while True:
    pass
"""
    async with docker.open(Limits(cpus=0.2)) as sandbox:
        result = await sandbox.exec(["python", "-c", script], timeout_s=15)
        assert result.timed_out
        assert result.exit_code is None
        assert result.wall_s < 15 + 32
