"""What a sandbox is opened with, and what it can then reach and read."""

import asyncio
import logging

import pytest

from harnessgym.errors import CapabilityError
from harnessgym.sandbox import Capability, Equipment, InstallStep, Prewarm
from harnessgym.task import Limits

pytestmark = pytest.mark.anyio


async def test_an_image_is_refused_where_there_are_none(backend):
    if Capability.IMAGE in backend.capabilities:
        pytest.skip("this backend has images")
    with pytest.raises(CapabilityError, match="image"):
        async with backend.open(Limits(), Equipment(image="debian:bookworm")):
            pass


async def test_without_images_installation_is_ignored(backend):
    if Capability.IMAGE in backend.capabilities:
        pytest.skip("this backend has images")
    async with backend.open(Limits(), Equipment(install=(InstallStep(("false",)),))) as sandbox:
        assert (await sandbox.exec(["true"])).ok


async def test_what_is_equipped_to_be_readable_is(backend, program):
    first, second = program("print('first')", "first.py"), program("print('second')", "second.py")
    async with backend.open(Limits(), Equipment(readable=(first, second))) as sandbox:
        assert (await sandbox.exec(["python", first])).stdout == b"first\n"
        again = [second] if Capability.IMAGE not in backend.capabilities else []
        assert (
            await sandbox.exec(["python", second], prewarm=Prewarm(), readable=again)
        ).stdout == b"second\n"


CONNECT = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
    print("reached")
except OSError:
    print("refused")
"""


async def test_without_a_proxy_there_is_none(backend):
    async with backend.open(Limits()) as sandbox:
        assert sandbox.proxy_url
        port = sandbox.proxy_url.rsplit(":", 1)[1]
        await sandbox.write("connect.py", CONNECT.encode())
        assert (await sandbox.exec(["python", "connect.py", port])).stdout == b"reached\n"
    async with backend.open(Limits(), Equipment(proxy=False)) as sandbox:
        assert sandbox.proxy_url == ""
        if Capability.NETWORK in backend.capabilities:
            await sandbox.write("connect.py", CONNECT.encode())
            assert (await sandbox.exec(["python", "connect.py", port])).stdout == b"refused\n"


class Answer:
    """Answers every connection with one line."""

    port = 9123
    env = {"WHERE": "outside", "BOTH": "outside"}  # noqa: RUF012

    def __init__(self):
        self.served = 0

    async def serve(self, listener):
        listener.setblocking(False)

        async def answer(_, writer):
            self.served += 1
            writer.write(b"from outside")
            writer.close()

        return await asyncio.start_server(answer, sock=listener)


ASK = """
import os, socket
try:
    print(socket.create_connection(("127.0.0.1", 9123), 5).recv(100).decode(), os.environ["WHERE"], os.environ["BOTH"])
except OSError:
    print("refused")
"""


async def test_a_command_may_be_given_something_else_to_reach_than_the_proxy(backend):
    if Capability.HOSTS not in backend.capabilities:
        pytest.skip(f"the {backend.name} backend does not offer it")
    outside = Answer()
    for equipment in (Equipment(), Equipment(proxy=False)):
        async with backend.open(Limits(), equipment) as sandbox:
            await sandbox.write("ask.py", ASK.encode())
            result = await sandbox.exec(["python", "ask.py"], outside=outside, env={"BOTH": "own"})
            assert result.stdout == b"from outside outside own\n", result.stderr
            without = await sandbox.exec(["python", "ask.py"], env=outside.env)
            assert without.stdout == b"refused\n"
    assert outside.served == 2


async def test_nothing_else_is_reached_where_hosts_are_not_offered(backend):
    if Capability.HOSTS in backend.capabilities:
        pytest.skip("this backend offers it")
    async with backend.open(Limits()) as sandbox:
        with pytest.raises(CapabilityError, match="hosts"):
            await sandbox.exec(["true"], outside=Answer())


async def test_the_process_backend_says_that_it_isolates_nothing(make_backend, caplog):
    backend = make_backend()
    with caplog.at_level(logging.WARNING):
        async with backend:
            pass
    warnings = [record for record in caplog.records if "isolates nothing" in record.message]
    assert len(warnings) == (0 if Capability.FILES in backend.capabilities else 1)
