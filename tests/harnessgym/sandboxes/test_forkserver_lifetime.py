"""Fork servers, their rollouts and their node may each be killed; nothing must outlive them, and the node
must go on.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harnessgym.errors import SandboxError
from harnessgym.sandbox import Prewarm
from harnessgym.task import Limits

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
BACKENDS = ("process", "bubblewrap")


def pids_with(mark):
    lines = subprocess.run(
        ["ps", "ax", "-o", "pid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [int(line.split()[0]) for line in lines if mark in line and "ps ax" not in line]


async def gone(mark, within_s=10.0):
    deadline = time.monotonic() + within_s
    while pids_with(mark) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return pids_with(mark) == []


def descendants(pid):
    out = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    children = [int(each) for each in out.split()]
    return [*children, *(each for child in children for each in descendants(child))]


async def test_a_killed_server_is_started_again(backend):
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("p.py", b"print('here')")
        assert (await sandbox.exec(["python", "p.py"], prewarm=Prewarm())).ok
        server = await backend.server(Prewarm(), ())
        for _ in range(2):
            for pid in (*descendants(server.pid), server.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            result = None
            while result is None:  # the kernel may take a moment to tell us
                with contextlib.suppress(SandboxError):
                    result = await sandbox.exec(["python", "p.py"], prewarm=Prewarm())
            assert result.stdout == b"here\n"
        assert server.starts == 3


async def test_rollouts_in_flight_end_when_everything_of_theirs_is_killed(backend):
    mark = f"7{os.getpid()}{time.monotonic_ns() % 10**6}"
    async with backend.open(Limits()) as sandbox:
        runs = [asyncio.create_task(sandbox.exec(["sleep", mark])) for _ in range(3)]
        while len(pids_with(f"sleep {mark}")) < 3:
            await asyncio.sleep(0.02)
        server = await backend.server(Prewarm(), ())
        for pid in (*descendants(server.pid), server.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for outcome in await asyncio.gather(*runs, return_exceptions=True):
            assert isinstance(outcome, SandboxError) or outcome.signal == signal.SIGKILL
        assert await gone(f"sleep {mark}")


async def test_a_harness_that_kills_its_supervisor_is_an_error_and_leaves_nothing(backend):
    mark = f"8{os.getpid()}{time.monotonic_ns() % 10**6}"
    async with backend.open(Limits()) as sandbox:
        command = ["sh", "-c", f"setsid sleep {mark} & kill -9 $PPID; sleep 1; echo survived"]
        try:
            assert (await sandbox.exec(command)).stdout == b"survived\n"
        except SandboxError as error:
            assert "init vanished" in str(error)  # noqa: PT017
        assert await gone(f"sleep {mark}")


NODE = """
import asyncio, sys
from pathlib import Path
from harnessgym.sandbox import Prewarm
from harnessgym.registry import load
from harnessgym.task import Limits
async def main():
    backend = load("sandbox", sys.argv[1])
    async with backend(backend.settings(workspace_root=Path(sys.argv[2]))) as opened, opened.open(Limits()) as sandbox:
        await sandbox.write("p.py", b"import subprocess; subprocess.run(['setsid', 'sleep', '" + sys.argv[3].encode() + b"'])")
        await asyncio.gather(*(sandbox.exec(["python", "p.py"], prewarm=Prewarm()) for _ in range(3)))
asyncio.run(main())
"""


@pytest.mark.parametrize("name", ["process", pytest.param("bubblewrap", marks=pytest.mark.bubblewrap)])
async def test_nothing_outlives_a_killed_node(name, tmp_path, make_backend):
    mark = f"9{os.getpid()}{time.monotonic_ns() % 10**6}"
    root = tmp_path / "w"
    node = subprocess.Popen([sys.executable, "-c", NODE, name, str(root), mark], cwd=ROOT)
    while len(pids_with(f"sleep {mark}")) < 3:
        assert node.poll() is None
        await asyncio.sleep(0.05)
    before = set(descendants(node.pid))
    assert before
    node.kill()
    node.wait()
    assert await gone(f"sleep {mark}")
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in before) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)
    assert len(list(root.iterdir())) == 1  # the dead node's folder
    async with make_backend() as backend:
        assert [path for path in root.iterdir() if path != backend.root] == []


@pytest.mark.parametrize("name", ["process", pytest.param("bubblewrap", marks=pytest.mark.bubblewrap)])
async def test_time_is_kept_inside_even_when_the_node_is_stopped(name, tmp_path):
    mark = f"9{os.getpid()}{time.monotonic_ns() % 10**6}"
    script = NODE.replace("Limits()", "Limits(wall_s=4)")
    node = subprocess.Popen([sys.executable, "-c", script, name, str(tmp_path / "w"), mark], cwd=ROOT)
    try:
        while len(pids_with(f"sleep {mark}")) < 3:
            assert node.poll() is None
            await asyncio.sleep(0.05)
        os.kill(node.pid, signal.SIGSTOP)
        assert await gone(f"sleep {mark}", within_s=20)
        os.kill(node.pid, signal.SIGCONT)
        assert await asyncio.to_thread(node.wait) == 0
    finally:
        node.kill()
        node.wait()


async def test_the_server_keeps_no_descriptor_and_no_child(backend):
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("p.py", b"print(1)")
        await sandbox.exec(["python", "p.py"], prewarm=Prewarm())
        server = await backend.server(Prewarm(), ())
        await asyncio.sleep(1.0)  # for the last of the command before to be reaped
        pid = (descendants(server.pid) or [server.pid])[-1]
        before = os.listdir(f"/proc/{pid}/fd")
        await asyncio.gather(*(sandbox.exec(["python", "p.py"], prewarm=Prewarm()) for _ in range(20)))
        await asyncio.sleep(0.2)
        assert os.listdir(f"/proc/{pid}/fd") == before
        assert descendants(pid) == []


async def test_this_process_keeps_no_descriptor(backend):
    async with backend.open(Limits()) as sandbox:
        await sandbox.exec(["true"])
        before = len(os.listdir("/proc/self/fd"))
        await asyncio.gather(*(sandbox.exec(["true"], stdin=b"x") for _ in range(20)))
        assert len(os.listdir("/proc/self/fd")) == before


async def test_a_harness_inherits_nothing_but_its_streams(backend):
    async with backend.open(Limits()) as sandbox:
        await sandbox.write(
            "p.py", b"import os; print([n for n in sorted(map(int, os.listdir('/proc/self/fd')))])"
        )
        for prewarm in (None, Prewarm()):
            result = await sandbox.exec(["python", "p.py"], prewarm=prewarm)
            assert result.stdout == b"[0, 1, 2, 3]\n"  # 3 is the listing itself
