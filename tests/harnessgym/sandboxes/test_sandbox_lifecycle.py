"""Sandboxes from their opening to their end: killed, kept, continued, counted and closed."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import time

import pytest

from harnessgym.errors import CapabilityError, SandboxError
from harnessgym.sandbox import Capability, Snapshot
from harnessgym.task import Limits

pytestmark = pytest.mark.anyio


def running(mark):
    """Command lines on this machine that contain `mark`."""
    lines = subprocess.run(
        ["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line for line in lines if mark in line and "ps ax" not in line]


async def begun(mark, count=1):
    async with asyncio.timeout(30):
        while len(running(mark)) < count:
            await asyncio.sleep(0.02)


def fresh_mark(kind):
    return f"{kind}{os.getpid()}{time.monotonic_ns() % 10**6}"


def skip_without(backend, capability):
    if capability not in backend.capabilities:
        pytest.skip(f"the {backend.name} backend does not offer {capability}")


# Processes


async def test_kill_all_ends_every_command_and_what_it_wrote_stays(backend):
    mark = fresh_mark(41)
    async with backend.open(Limits()) as sandbox:
        script = f"echo kept > file; (setsid sleep {mark} &); trap '' TERM INT; sleep {mark}; echo never"
        runs = [asyncio.create_task(sandbox.exec(["sh", "-c", script])) for _ in range(3)]
        await begun(f"sleep {mark}", 6)
        await sandbox.kill_all()
        assert running(mark) == []
        for run in runs:
            result = await run
            assert (result.exit_code, result.signal, result.timed_out) == (None, signal.SIGKILL, False)
            assert result.stdout == b""
        assert await sandbox.read("file") == b"kept\n"
        assert (await sandbox.exec(["cat", "file"])).stdout == b"kept\n"  # it can still be used
        await sandbox.kill_all()


async def test_kill_all_spares_the_neighbour(backend):
    mark = fresh_mark(42)
    async with backend.open(Limits()) as one, backend.open(Limits()) as other:
        doomed = asyncio.create_task(one.exec(["sleep", mark]))
        spared = asyncio.create_task(other.exec(["sh", "-c", f"sleep 2; echo {mark}"]))
        await begun(f"sleep {mark}")
        await one.kill_all()
        assert (await doomed).signal == signal.SIGKILL
        assert (await spared).stdout.decode().strip() == mark


ZOMBIES = """
import os, sys, time
for _ in range(40):
    if os.fork() == 0:
        if os.fork() == 0:  # its parent does not wait for it: whoever adopts it must
            os._exit(0)
        os._exit(0)
for _ in range(40):
    os.wait()
for _ in range(100):
    left = [n for n in os.listdir("/proc") if n.isdecimal() and is_zombie(n)]
    if not left:
        break
    time.sleep(0.05)
print(len(left))
"""
IS_ZOMBIE = """
def is_zombie(pid):
    try:
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] == "Z"
"""


async def test_orphans_are_reaped_while_the_command_runs(backend):
    if Capability.PROCESSES not in backend.capabilities:
        pytest.skip("this backend shows the processes of others too")
    async with backend.open(Limits(processes=200)) as sandbox:
        await sandbox.write("zombies.py", (IS_ZOMBIE + ZOMBIES).encode())
        assert (await sandbox.exec(["python", "zombies.py"])).stdout == b"0\n"


async def test_more_processes_than_allowed_at_one_time_may_follow_one_another(backend):
    async with backend.open(Limits(processes=30)) as sandbox:
        script = "i=0; while [ $i -lt 100 ]; do (true &); i=$((i+1)); sleep 0.005; done; wait; echo fine"
        assert (await sandbox.exec(["sh", "-c", script])).stdout == b"fine\n"


async def test_pause_is_refused_where_there_is_none(backend):
    if Capability.PAUSE in backend.capabilities:
        pytest.skip("this backend can pause")
    async with backend.open(Limits()) as sandbox:
        for refused in (sandbox.pause, sandbox.resume):
            with pytest.raises(CapabilityError, match="pause"):
                await refused()


# Files


async def test_a_harness_owns_what_was_put_there_for_it(backend, tmp_path):
    (tmp_path / "file").write_text("before")
    async with backend.open(Limits()) as sandbox:
        await sandbox.upload(tmp_path / "file", "folder/up")
        await sandbox.write("folder/written", b"before")
        script = "stat -c '%u' . folder folder/up folder/written; id -u; echo after > folder/up; rm folder/written; mkdir folder/new"
        result = await sandbox.exec(["sh", "-c", script])
        assert result.ok, result.stderr
        owners = set(result.stdout.split())
        assert len(owners) == 1
        if Capability.FILES in backend.capabilities:
            assert owners == {b"1000"}
        assert await sandbox.read("folder/up") == b"after\n"


async def test_long_and_deep_paths_go_in_and_out(backend):
    path = "/".join(["d" * 100] * 20) + "/" + "n" * 255
    async with backend.open(Limits()) as sandbox:
        await sandbox.write(path, b"x")
        assert await sandbox.read(path) == b"x"
        with pytest.raises(SandboxError, match="name too long"):
            await sandbox.write("n" * 256, b"x")


async def test_names_that_differ_only_in_case_or_form_are_different(backend):
    names = ["Name", "name", "e\u0301", "\u00e9", "\u212b", "\u00c5"]
    async with backend.open(Limits()) as sandbox:
        for name in names:
            await sandbox.write(name, name.encode())
        for name in names:
            assert await sandbox.read(name) == name.encode()
        assert (await sandbox.exec(["sh", "-c", "ls | wc -l"])).stdout.strip() == b"6"


# Snapshots


async def test_a_snapshot_is_continued_from_several_times(backend):
    skip_without(backend, Capability.SNAPSHOT)
    async with backend.open(Limits()) as sandbox:
        script = "mkdir -p a/b; echo 1 > a/b/f; chmod 750 a/b/f; ln -s b/f a/link; ln -s /nowhere dangling; touch -d @123.5 a/b/f a"
        assert (await sandbox.exec(["sh", "-c", script])).ok
        snapshot = await sandbox.snapshot()
        await sandbox.exec(["sh", "-c", "echo 2 > a/b/f; rm dangling"])
        forks = [await sandbox.fork(snapshot) for _ in range(2)]
        try:
            for number, fork in enumerate(forks):
                look = "cat a/link; readlink dangling; stat -c '%a %.9Y %u' a/b/f; stat -c %.1Y a; id -u"
                result = await fork.exec(["sh", "-c", look])
                *lines, owner, who = result.stdout.decode().replace("\n123.5\n", " ").split()
                assert lines == ["1", "/nowhere", "750", "123.500000000"], result
                assert owner == who
                await fork.exec(["sh", "-c", f"echo fork {number} > a/b/f"])
            assert [await fork.read("a/b/f") for fork in forks] == [b"fork 0\n", b"fork 1\n"]
            assert await sandbox.read("a/b/f") == b"2\n"
        finally:
            for fork in forks:
                await fork.aclose()


async def test_a_snapshot_outlives_its_sandbox_and_a_fork_its_origin(backend):
    skip_without(backend, Capability.SNAPSHOT)
    async with backend.open(Limits(processes=33)) as sandbox:
        await sandbox.write("f", b"kept")
        snapshot = await sandbox.snapshot()
    async with backend.open(Limits()) as other:
        fork = await other.fork(snapshot)
    assert await fork.read("f") == b"kept"
    assert (await fork.exec(["cat", "f"])).stdout == b"kept"
    again = await fork.snapshot()
    assert again.id != snapshot.id
    await fork.aclose()
    await fork.aclose()
    assert not fork.workspace.exists()


async def test_a_snapshot_of_somebody_else_is_refused(backend):
    skip_without(backend, Capability.SNAPSHOT)
    async with backend.open(Limits()) as sandbox:
        for snapshot in (
            Snapshot(backend.name, "no-such"),
            Snapshot(backend.name, "../../etc"),
            Snapshot("other", "x"),
        ):
            with pytest.raises(SandboxError):
                await sandbox.fork(snapshot)


# Stats


async def test_stats_count_processes_memory_time_and_disk(backend):
    skip_without(backend, Capability.STATS)
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("data", b"x" * 1_000_000)
        idle = await sandbox.stats()
        assert idle.disk_bytes >= 1_000_000
        script = """
import subprocess
children = [subprocess.Popen(["sh", "-c", "sleep 1000; true"]) for _ in range(2)]
held = bytearray(80 << 20)
for place in range(0, len(held), 4096):
    held[place] = 1
open("ready", "w").close()
while True:
    pass
"""
        await sandbox.write("work.py", script.encode())
        run = asyncio.create_task(sandbox.exec(["python", "work.py"]))
        async with asyncio.timeout(30):
            while not (await sandbox.exec(["test", "-e", "ready"])).ok:
                await asyncio.sleep(0.05)
        busy = await sandbox.stats()
        async with asyncio.timeout(30):
            while busy.cpu_s < idle.cpu_s + 0.5:
                busy = await sandbox.stats()
        assert busy.processes >= idle.processes + 5
        assert busy.memory_bytes > idle.memory_bytes + (80 << 20)
        assert busy.cpu_s < 60
        await sandbox.kill_all()
        await run
        after = await sandbox.stats()
        assert after.processes == idle.processes
        assert after.memory_bytes < idle.memory_bytes + (40 << 20)
        assert after.cpu_s >= busy.cpu_s - 0.1  # what has ended is not forgotten


# The end


async def test_closing_twice_and_at_once_is_fine(backend):
    async with backend.open(Limits()) as sandbox:
        folder = sandbox.workspace
        await asyncio.gather(sandbox.aclose(), sandbox.aclose())
        await sandbox.aclose()
        assert not folder.exists()


async def test_a_closed_sandbox_refuses(backend, tmp_path):
    async with backend.open(Limits()) as sandbox:
        await sandbox.aclose()
        with pytest.raises(SandboxError):
            await sandbox.exec(["true"])
        with pytest.raises(SandboxError):
            await sandbox.read("x")
        with pytest.raises(SandboxError):
            await sandbox.write("x", b"")
        with pytest.raises(SandboxError):
            await sandbox.export(tmp_path / "out", max_bytes=1, max_files=1)
        await sandbox.kill_all()


async def test_cleaning_up_is_finished_even_when_it_is_cancelled(backend):
    mark = fresh_mark(43)
    async with backend.open(Limits()) as sandbox:
        folder = sandbox.workspace
        run = asyncio.create_task(sandbox.exec(["sh", "-c", f"mkdir $(seq 2000); sleep {mark}"]))
        await begun(f"sleep {mark}")
        closing = asyncio.create_task(sandbox.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert running(mark) == []
        assert not folder.exists()
        with pytest.raises(asyncio.CancelledError):
            await run


async def test_leaving_a_backend_closes_what_is_still_open(make_backend):
    mark = fresh_mark(44)
    async with make_backend() as backend:
        holder = backend.open(Limits())
        sandbox = await holder.__aenter__()
        run = asyncio.create_task(sandbox.exec(["sleep", mark]))
        await begun(f"sleep {mark}")
    assert running(mark) == []
    assert not sandbox.workspace.exists()
    with pytest.raises(asyncio.CancelledError):
        await run
    await holder.__aexit__(None, None, None)


async def test_leaving_a_backend_is_finished_even_when_it_is_cancelled(make_backend):
    mark, ready = fresh_mark(45), asyncio.Event()

    async def node():
        async with make_backend() as backend, backend.open(Limits()) as sandbox:
            run = asyncio.create_task(sandbox.exec(["sleep", mark]))
            run.add_done_callback(lambda done: done.cancelled())
            ready.set()
            await asyncio.sleep(1000)

    running_node = asyncio.create_task(node())
    await ready.wait()
    await begun(f"sleep {mark}")
    running_node.cancel()
    await asyncio.sleep(0.01)
    running_node.cancel()  # the second Ctrl-C
    with pytest.raises(asyncio.CancelledError):
        await running_node
    assert running(mark) == []


def leave():
    os._exit(0)


async def test_a_forked_child_of_the_node_takes_nothing_with_it(backend):
    """A vector environment forks its workers from a process that may have sandboxes open."""
    mark = fresh_mark(46)
    async with backend.open(Limits()) as sandbox:
        run = asyncio.create_task(sandbox.exec(["sh", "-c", f"sleep 3; echo {mark}"]))
        await begun(f"echo {mark}")
        context = multiprocessing.get_context("fork")
        for target in (leave, int):  # one that ends abruptly, one that goes through its exit handlers
            child = context.Process(target=target)
            child.start()
            await asyncio.to_thread(child.join)
            assert child.exitcode == 0
        assert (await sandbox.exec(["echo", "still"])).stdout == b"still\n"
        assert (await run).stdout.decode().strip() == mark
