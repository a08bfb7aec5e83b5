"""Nodes, containers, agents and the engine's connection may each be cut off at any moment; nothing may be
left behind.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harnessgym.errors import SandboxError
from harnessgym.sandbox import PLAIN, Equipment
from harnessgym.sandboxes.containers import LEASE_LABEL, ROOT_LABEL
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.sandboxes.engine import address, connect
from harnessgym.task import Limits

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
ROOT = Path(__file__).parents[3]
NODE = """
import asyncio, sys
from pathlib import Path
from harnessgym.sandboxes.docker import Docker, DockerSettings
from harnessgym.task import Limits
async def main():
    async with Docker(DockerSettings(workspace_root=Path(sys.argv[1]), spares=0)) as docker:
        async with docker.open(Limits()) as busy, docker.open(Limits()) as frozen:
            run = asyncio.create_task(busy.exec(["sh", "-c", "setsid sleep " + sys.argv[2] + " & wait"]))
            await frozen.exec(["true"])
            await frozen.pause()
            print("ready", flush=True)
            await run
asyncio.run(main())
"""


@pytest.fixture
def engine():
    client = connect()
    yield client
    client.close()


@pytest.fixture
def containers(engine, tmp_path):
    """The ids of this test's containers, running or not."""
    return lambda: [
        each["Id"]
        for each in engine.containers(all=True, filters={"label": f"{ROOT_LABEL}={tmp_path / 'w'}"})
    ]


@pytest.fixture
def make_docker_here(tmp_path):
    return lambda **settings: Docker(DockerSettings(workspace_root=tmp_path / "w", **settings))


async def until(condition, within_s=15.0):
    deadline = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return condition()


def processes(mark):
    lines = subprocess.run(
        ["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line for line in lines if mark in line and "ps ax" not in line and "python" not in line]


async def test_nothing_outlives_a_killed_node_but_what_is_frozen_and_that_goes_with_the_next(
    make_docker_here, containers, engine, tmp_path
):
    image = DockerSettings().image
    mark = f"9{os.getpid()}{time.monotonic_ns() % 10**6}"
    root = tmp_path / "w"
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, str(root), mark], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with node:
        assert node.stdout.readline() == "ready\n"
        assert await until(lambda: processes(mark))
        node.kill()
    assert await until(lambda: not processes(mark))
    assert await until(lambda: len(containers()) == 1)
    frozen = containers()
    assert engine.inspect_container(frozen[0])["State"]["Paused"]
    foreign = [
        engine.create_container(image=image, command=["true"], labels=labels)["Id"]
        for labels in (
            {},
            {LEASE_LABEL: "/no/such/lease"},
            {ROOT_LABEL: str(tmp_path / "other"), LEASE_LABEL: "/no/such/lease"},
        )
    ]
    unstarted = engine.create_container(
        image=image, command=["true"], labels={ROOT_LABEL: str(root), LEASE_LABEL: str(root / "gone")}
    )["Id"]
    try:
        async with make_docker_here() as first, first.open(Limits()) as living:
            assert set(containers()) == {living.id}
            async with make_docker_here():
                assert (
                    await living.exec(["true"])
                ).ok  # a second node on the same folder leaves the first alone
            assert unstarted not in containers()
            for each in foreign:
                engine.inspect_container(each)
        assert containers() == []
        assert list(root.iterdir()) == []
    finally:
        for each in foreign:
            engine.remove_container(each, force=True)


async def test_time_is_kept_inside_even_when_the_node_is_stopped(containers, tmp_path):
    mark = f"7{os.getpid()}{time.monotonic_ns() % 10**6}"
    script = NODE.replace('& wait"]', '& wait"], timeout_s=4')
    assert script != NODE
    command = [sys.executable, "-c", script, str(tmp_path / "w"), mark]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout.readline() == "ready\n"
        assert await until(lambda: processes(mark))
        os.kill(node.pid, signal.SIGSTOP)
        assert await until(lambda: not processes(mark), 20)
        assert len(containers()) == 2
        os.kill(node.pid, signal.SIGCONT)
    assert node.returncode == 0
    assert containers() == []


async def test_closing_twice_and_at_once_is_fine(docker, containers):
    sandbox = await docker.start(Limits(), PLAIN)
    await asyncio.gather(sandbox.aclose(), sandbox.aclose())
    await sandbox.aclose()
    assert containers() == []
    for call in (sandbox.exec(["true"]), sandbox.read("x"), sandbox.write("x", b""), sandbox.stats()):
        with pytest.raises(SandboxError, match="gone"):
            await call


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3])
async def test_an_opening_that_is_cancelled_leaves_nothing(make_docker_here, containers, delay):
    async def use(docker):
        async with docker.open(Limits()) as sandbox:
            await sandbox.exec(["sleep", "1000"])

    async with make_docker_here(spares=0) as docker:
        await docker.plan(Limits(), PLAIN)  # the image has been looked at
        using = asyncio.create_task(use(docker))
        await asyncio.sleep(delay)
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using
        assert containers() == []
        assert {path.name for path in docker.root.iterdir()} <= {"accounts"}


async def test_an_opening_that_is_cancelled_when_it_is_done_leaves_nothing(make_docker_here, containers):
    equipment = Equipment(proxy=False)
    async with make_docker_here(spares=0) as docker:
        await docker.plan(Limits(), equipment)
        opening = asyncio.create_task(docker.start(Limits(), equipment))
        while not docker._open:  # the very moment is what matters
            await asyncio.sleep(0)
        assert not opening.done()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not docker._open
        assert containers() == []


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.01, 0.03])
async def test_a_pause_that_is_cancelled_is_a_pause(docker, delay):
    async with docker.open(Limits()) as sandbox:
        pausing = asyncio.create_task(sandbox.pause())
        await asyncio.sleep(delay)
        pausing.cancel()
        await asyncio.gather(pausing, return_exceptions=True)
        await sandbox.resume()
        assert (await sandbox.exec(["true"], timeout_s=60)).ok


async def test_what_is_handed_out_by_the_agent_is_inherited_by_nobody(docker):
    async with docker.open(Limits()) as sandbox:
        root = sandbox.workspace.stat()
        numbers = [int(each) for each in os.listdir("/proc/self/fd")]
        ours = [each for each in numbers if _same(each, root)]
        assert ours
        assert not any(map(os.get_inheritable, ours))


def _same(descriptor, status):
    with contextlib.suppress(OSError):
        found = os.fstat(descriptor)
        return (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino)
    return False


async def test_a_spare_shows_the_file_that_is_readable_at_present(make_docker_here, tmp_path):
    program = tmp_path / "program.sh"
    program.write_text("echo old")
    equipment = Equipment(readable=(str(program),))
    async with make_docker_here() as docker:
        async with docker.open(Limits(), equipment) as sandbox:
            assert (await sandbox.exec(["sh", str(program)])).stdout == b"old\n"
        assert await until(lambda: docker.pool.parked)
        (tmp_path / "new").write_text("echo new")
        (tmp_path / "new").rename(program)
        async with docker.open(Limits(), equipment) as sandbox:
            assert (await sandbox.exec(["sh", str(program)])).stdout == b"new\n"


async def test_a_folder_may_be_named_from_where_the_node_was_started(tmp_path, containers):
    here = Path(os.path.relpath(tmp_path / "w"))
    async with (
        Docker(DockerSettings(workspace_root=here, spares=0)) as docker,
        docker.open(Limits()) as sandbox,
    ):
        assert (await sandbox.exec(["true"])).ok
        assert containers() == [sandbox.id]


async def test_leaving_the_backend_ends_what_is_still_open(make_docker_here, containers, tmp_path):
    async with make_docker_here() as docker:
        sandboxes = [await docker.start(Limits(), PLAIN) for _ in range(3)]
        await sandboxes[0].pause()
        run = asyncio.create_task(sandboxes[1].exec(["sleep", "1000"]))
        await asyncio.sleep(0.1)
    assert containers() == []
    assert list((tmp_path / "w").iterdir()) == []
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_no_descriptor_is_kept(docker):
    async def use():
        async with docker.open(Limits()) as sandbox:
            await sandbox.exec(["true"], stdin=b"x")
            await sandbox.write("x", b"y")
            await sandbox.read("x")

    await use()
    before = descriptors()
    await asyncio.gather(*(use() for _ in range(4)))
    assert descriptors() == before


def descriptors():
    """What this process has open, but for the connections that the engine's client keeps for later."""
    found = []
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{each}")
            if not (target.startswith("socket:") and peer(int(each)) == address().removeprefix("unix://")):
                found.append("socket" if target.startswith("socket:") else target)
    return sorted(found)


def peer(descriptor):
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        try:
            return duplicate.getpeername()
        except OSError:
            return None


async def test_a_container_that_is_removed_is_an_error_and_no_result(docker, engine):
    async with docker.open(Limits()) as sandbox:
        run = asyncio.create_task(sandbox.exec(["sleep", "1000"]))
        await asyncio.sleep(0.2)
        engine.remove_container(sandbox.id, force=True)
        with pytest.raises(SandboxError, match="gone"):
            await run
        for call in (sandbox.exec(["true"]), sandbox.read("x"), sandbox.stats(), sandbox.snapshot()):
            with pytest.raises(SandboxError, match="gone"):
                await call


async def test_an_agent_that_is_killed_is_an_error_and_takes_all_along(docker, containers):
    mark = f"8{os.getpid()}{time.monotonic_ns() % 10**6}"
    async with docker.open(Limits()) as sandbox:
        run = asyncio.create_task(sandbox.exec(["sh", "-c", f"setsid sleep {mark} & wait"]))
        assert await until(lambda: processes(mark))
        os.kill(sandbox.host_pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="gone"):
            await run
        assert await until(lambda: not processes(mark))
        assert await until(lambda: containers() == [])


@pytest.mark.parametrize("stop", [["stop"], ["kill", "--signal", "TERM"]])
async def test_a_container_that_is_asked_to_stop_does_so_at_once(docker, containers, stop):
    async with docker.open(Limits()) as sandbox:
        began = time.monotonic()
        subprocess.run(["docker", *stop, sandbox.id], check=True, capture_output=True)
        assert await until(lambda: containers() == [])
        assert time.monotonic() - began < 5


class Cable:
    """A connection to the engine that can be pulled out and put back."""

    def __init__(self, path):
        self.path, self.writers, self.server = path, set(), None

    async def plug(self):
        self.server = await asyncio.start_unix_server(self.carry, self.path)

    async def pull(self):
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        await self.server.wait_closed()
        self.path.unlink(missing_ok=True)
        await asyncio.sleep(0.05)

    async def carry(self, reader, writer):
        there_reader, there_writer = await asyncio.open_unix_connection(address().removeprefix("unix://"))
        self.writers |= {writer, there_writer}
        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))
        self.writers -= {writer, there_writer}


async def pump(reader, writer):
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_sandboxes_go_on_while_the_engine_is_away(make_docker_here, containers, tmp_path):
    cable = Cable(tmp_path / "engine.sock")
    await cable.plug()
    async with make_docker_here(host=f"unix://{cable.path}", engine_wait_s=0.3) as docker:
        async with docker.open(Limits()) as sandbox:
            run = asyncio.create_task(sandbox.exec(["sh", "-c", "sleep 1; echo survived"]))
            await asyncio.sleep(0.1)
            await cable.pull()
            assert (await run).stdout == b"survived\n"
            await sandbox.write("x", b"written")
            assert await sandbox.read("x") == b"written"
            with pytest.raises(SandboxError, match="does not answer"):
                await sandbox.pause()
            with pytest.raises(SandboxError, match="does not answer"):
                async with docker.open(Limits()):
                    pass
        assert await until(lambda: containers() == [])  # by the engine itself
        await cable.plug()
        async with docker.open(Limits()) as sandbox:
            assert (await sandbox.exec(["true"])).ok
    await cable.pull()
    assert containers() == []


async def test_a_claim_finds_out_once_that_the_engine_is_away(make_docker_here, containers, tmp_path):
    cable = Cable(tmp_path / "engine.sock")
    await cable.plug()
    async with make_docker_here(host=f"unix://{cable.path}", engine_wait_s=1.0, spares=4) as docker:
        docker._pool.warm_up(await docker.plan(Limits(), PLAIN), 8)
        assert await until(lambda: docker.pool.parked == 4, 60)
        await cable.pull()
        began = time.monotonic()
        with pytest.raises(SandboxError, match="does not answer"):
            async with docker.open(Limits()):
                pass
        assert time.monotonic() - began < 3  # not once for each of the spares
        assert docker.pool.parked == 3
        await asyncio.sleep(1.5)  # removing it is given up, too
        await cable.plug()
        before = set(containers())
        await docker.containers.reap()
        assert len(before - set(containers())) == 1
    await cable.pull()
    assert containers() == []


async def test_a_backend_without_an_engine_says_so(make_docker_here, tmp_path):
    with pytest.raises(SandboxError, match=r"No Docker engine answers at unix://.*DOCKER_HOST"):
        async with make_docker_here(host=f"unix://{tmp_path}/nothing.sock"):
            pass
