"""Edge cases of sandboxes that belong to no other file: terminals, foreign programs, names, ports, builds,
event loops.
"""

import asyncio
import json
import os
import subprocess
import threading
import time
import uuid

import pytest

from harnessgym.sandbox import Equipment, InstallStep
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.sandboxes.containers import ROOT_LABEL
from harnessgym.sandboxes.engine import connect
from harnessgym.task import Limits
from tests.support.shell_root import shell_root

pytestmark = pytest.mark.anyio
BACKENDS = ("bubblewrap", "docker")


@pytest.fixture
def engine():
    client = connect()
    yield client
    client.close()


@pytest.fixture
def shell_image(engine):
    """An image that holds a shell and what that needs, and nothing else; it and what stands on it go
    afterwards.
    """
    name = f"harnessgym-test/{uuid.uuid4().hex}"
    engine.import_image_from_data(shell_root(), repository=name, tag="latest", changes=[f"LABEL test={name}"])
    yield name
    while images := engine.images(filters={"label": f"test={name}"}, all=True):
        for each in images:
            for named in each["RepoTags"] or [each["Id"]]:
                engine.remove_image(named)


def containers_of(engine, root):
    return engine.containers(all=True, filters={"label": f"{ROOT_LABEL}={root}"})


# Processes


async def test_no_stream_is_a_terminal(backend):
    async with backend.open(Limits()) as sandbox:
        script = "import os, sys; print([os.isatty(n) for n in range(3)]); open('/dev/tty')"
        result = await sandbox.exec(["python3", "-c", script], stdin=b"x")
        assert result.stdout == b"[False, False, False]\n"
        assert b"OSError" in result.stderr  # there is none to ask a person on, either


@pytest.mark.docker
async def test_a_timeout_needs_no_program_of_the_image(docker, shell_image):
    async with docker.open(Limits(), Equipment(image=shell_image)) as sandbox:
        assert (await sandbox.exec(["/bin/sh", "-c", "timeout 1 true"])).exit_code == 127
        result = await sandbox.exec(
            ["/bin/sh", "-c", "trap '' TERM; echo begun; while :; do :; done"], timeout_s=1
        )
        assert (result.timed_out, result.exit_code, result.stdout) == (True, None, b"begun\n")


@pytest.mark.docker
async def test_root_cannot_remove_the_programs_of_the_image(docker):
    async with docker.open(Limits()) as sandbox:
        removed = await sandbox.exec(["rm", "-rf", "/bin", "/usr/bin", "/lib"], user="root")
        assert b"Read-only file system" in removed.stderr
        assert (await sandbox.exec(["sh", "-c", "ls /usr/bin | grep -c python3"])).ok


# Output


async def test_streams_that_a_command_joins_keep_their_order(backend):
    async with backend.open(Limits()) as sandbox:
        script = "exec 2>&1; i=0; while [ $i -lt 500 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
        result = await sandbox.exec(["sh", "-c", script])
        assert result.stdout == b"".join(b"out %d\nerr %d\n" % (n, n) for n in range(500))
        assert result.stderr == b""


async def test_10_mib_of_output_are_kept_unless_a_limit_says_otherwise(backend):
    async with backend.open(Limits()) as sandbox:
        result = await sandbox.exec(["sh", "-c", "head -c 12000000 /dev/zero; echo the end"])
        assert (len(result.stdout), result.stdout_truncated) == (10 << 20, True)
        assert result.stdout.endswith(b"\0the end\n")


# Images


async def test_a_program_of_another_platform_is_a_result(backend):
    """An ELF file for SuperH: neither the kernel nor an image of another platform makes an error of the
    sandbox of it.
    """
    foreign = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\x2a\x00\x01\x00\x00\x00" + bytes(200)
    async with backend.open(Limits()) as sandbox:
        await sandbox.write("foreign", foreign)
        assert (await sandbox.exec(["chmod", "755", "foreign"])).ok
        result = await sandbox.exec(["./foreign"])
        assert result.exit_code in (126, 127)
        assert b"Exec format error" in result.stderr
        assert (await sandbox.exec(["true"])).ok


@pytest.mark.docker
async def test_an_opening_that_is_cancelled_while_its_image_is_built_leaves_no_container(
    docker, shell_image, engine
):
    count = "i=0; while [ $i -lt 600000 ]; do i=$((i+1)); done; : > /made"
    equipment = Equipment(image=shell_image, install=(InstallStep(("/bin/sh", "-c", count)),))
    opening = asyncio.create_task(docker.start(Limits(), equipment))
    while not engine.containers(filters={"label": f"test={shell_image}"}):
        assert not opening.done()
        await asyncio.sleep(0.02)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert containers_of(engine, docker.options.workspace_root) == []
    async with docker.open(Limits(), equipment) as sandbox:  # the build is finished or taken up, and found
        assert (await sandbox.exec(["/bin/sh", "-c", "test -e /made"])).ok
    assert engine.containers(all=True, filters={"label": f"test={shell_image}"}) == []


# Networks


@pytest.mark.docker
async def test_sandboxes_take_no_subnet_port_or_name_from_each_other(docker, engine):
    networks = len(engine.networks())
    async with docker.open(Limits()) as one, docker.open(Limits()) as other:
        found = [engine.inspect_container(each.id) for each in (one, other)]
        assert len({each["Name"] for each in found}) == 2
        for each in found:
            assert each["HostConfig"]["NetworkMode"] == "none"
            assert not each["HostConfig"]["PortBindings"]
            assert not each["NetworkSettings"]["Ports"]
        assert len(engine.networks()) == networks


async def test_no_name_but_localhost_is_resolved_inside(backend):
    script = """
import json, socket
def resolved(name):
    try:
        return socket.getaddrinfo(name, 80) != []
    except OSError:
        return False
print(json.dumps([resolved(name) for name in ("localhost", "example.org", "host.docker.internal", "packages.example.org")]))
"""
    async with backend.open(Limits()) as sandbox:
        result = await sandbox.exec(["python3", "-c", script], timeout_s=30)
        assert json.loads(result.stdout) == [True, False, False, False]


# Lifecycle


@pytest.mark.bubblewrap
def test_an_event_loop_that_ends_closes_its_sandboxes(tmp_path):
    mark = f"47{os.getpid()}{time.monotonic_ns() % 10**6}"

    def running():
        lines = subprocess.run(
            ["ps", "ax", "-o", "args"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        return [line for line in lines if f"sleep {mark}" in line]

    async def hold():
        settings = BubblewrapSettings(workspace_root=tmp_path)
        async with Bubblewrap(settings) as backend, backend.open(Limits()) as sandbox:
            await sandbox.exec(["sleep", mark])

    async def main():
        task = asyncio.create_task(hold())
        while not running():
            assert not task.done()
            await asyncio.sleep(0.05)

    asyncio.run(main())  # returns while the sandbox is open
    assert running() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bubblewrap
async def test_a_sandbox_that_is_dropped_unclosed_ends_with_its_backend(tmp_path, anyio_backend):
    async with Bubblewrap(BubblewrapSettings(workspace_root=tmp_path)) as backend:
        folder = (await backend.open(Limits()).__aenter__()).workspace
        assert folder.exists()
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bubblewrap
def test_sandboxes_may_be_used_from_a_loop_in_another_thread(tmp_path):
    said = []

    async def main():
        settings = BubblewrapSettings(workspace_root=tmp_path)
        async with Bubblewrap(settings) as backend, backend.open(Limits()) as sandbox:
            said.append((await sandbox.exec(["echo", "here"])).stdout)

    threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [b"here\n"] * 2
