"""The relay between a rollout's loopback and the proxy's unix socket."""

import asyncio
import contextlib
import os
import socket

import pytest

from harnessgym.sandboxes.relay import _MOST_CONNECTIONS, SandboxRelay

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def relayed(path, max_wait_s=5.0):
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    listening = await SandboxRelay(path, max_wait_s).serve(listener)
    try:
        yield address
    finally:
        listening.close()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def echo(path):
    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.write(b"END")
        writer.close()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()


async def test_large_bodies_pass_both_ways_whole(tmp_path):
    body = bytes(range(256)) * 40_000
    async with echo(tmp_path / "s"), relayed(tmp_path / "s") as address:
        reader, writer = await asyncio.open_connection(*address)

        async def send():
            writer.write(body)
            await writer.drain()
            writer.write_eof()

        _, got = await asyncio.gather(send(), reader.read())
        assert got == body + b"END"
        writer.close()


async def test_a_connection_waits_for_a_proxy_that_starts_later(tmp_path):
    async with relayed(tmp_path / "s") as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"early")
        await asyncio.sleep(0.3)
        async with echo(tmp_path / "s"):
            assert await reader.readexactly(5) == b"early"
            writer.close()
            await asyncio.sleep(0.1)


async def test_a_proxy_may_be_restarted_between_connections(tmp_path):
    async with relayed(tmp_path / "s") as address:
        for _ in range(3):
            async with echo(tmp_path / "s"):
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b"x")
                writer.write_eof()
                assert await reader.read() == b"xEND"
                writer.close()
            (tmp_path / "s").unlink(missing_ok=True)


async def test_a_proxy_that_stays_away_closes_the_connection(tmp_path):
    async with relayed(tmp_path / "s", max_wait_s=0.1) as address:
        reader, writer = await asyncio.open_connection(*address)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_closing_drops_connections_and_the_port(tmp_path):
    async with echo(tmp_path / "s"):
        async with relayed(tmp_path / "s") as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        await asyncio.sleep(0.1)


async def test_a_slow_reader_holds_the_sender_back(tmp_path):
    async with echo(tmp_path / "s"), relayed(tmp_path / "s") as address:
        _, writer = await asyncio.open_connection(*address, limit=1 << 12)
        sent = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while sent < 1 << 30:
                    writer.write(bytes(1 << 16))
                    await writer.drain()
                    sent += 1 << 16
        assert sent < 64 << 20
        writer.transport.abort()
        await asyncio.sleep(0.1)


async def test_connections_are_bounded_and_come_free_again(tmp_path):
    async with echo(tmp_path / "s"), relayed(tmp_path / "s") as address:
        before = descriptors()
        clients = [await asyncio.open_connection(*address) for _ in range(_MOST_CONNECTIONS + 50)]
        assert await until(lambda: descriptors() - before >= len(clients) + 3 * _MOST_CONNECTIONS)
        await asyncio.sleep(0.2)
        assert (
            descriptors() - before == len(clients) + 3 * _MOST_CONNECTIONS
        )  # the far end is in this process, too
        with contextlib.suppress(ConnectionError):
            assert await clients[-1][0].read() == b""
        for _, writer in clients:
            writer.close()
        assert await until(lambda: descriptors() == before)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        writer.close()
        assert await until(lambda: descriptors() == before)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


async def until(condition, within_s=10.0):
    deadline = asyncio.get_running_loop().time() + within_s
    while not condition() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.02)
    return condition()
