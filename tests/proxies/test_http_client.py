"""The client of engine workers against real servers of single bytes: reuse, greetings, broken responses."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harnessgym.errors import ConfigError, UpstreamLost
from proxies.http_client import Greeting, HttpClient

pytestmark = pytest.mark.anyio


def reply(body: bytes = b"ok", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass
class RawServer:
    """Answers the requests of each connection with these bytes in turn; it closes after the last, or where it
    has None.
    """

    connections: list[Sequence[bytes | None]]
    requests: list[tuple[int, str, bytes]] = field(default_factory=list)
    """Number of the connection, first line, and body."""
    heads: list[str] = field(default_factory=list)
    handlers: list["asyncio.Task[None]"] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        return len(self.handlers)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.handlers)
        self.handlers.append(asyncio.create_task(self.handle(number, reader, writer)))

    async def handle(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            for answer in self.connections[number]:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                self.requests.append((number, head.partition("\r\n")[0], await reader.readexactly(length)))
                self.heads.append(head)
                if answer is None:
                    break
                writer.write(answer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def serving(
    *connections: Sequence[bytes | None], path: Path | None = None
) -> AsyncIterator[tuple[RawServer, str]]:
    """A server and its address: a port of this machine, or a unix socket at `path`."""
    server = RawServer(list(connections))
    if path is None:
        listening = await asyncio.start_server(server.accept, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    else:
        listening = await asyncio.start_unix_server(server.accept, path)
        address = f"unix:{path}"
    async with listening:
        yield server, address
        async with asyncio.timeout(10):
            await asyncio.gather(*server.handlers)


async def body_of(client: HttpClient, path: str = "/x", body: bytes = b"") -> bytes:
    async with client.request("POST", path, body) as response:
        return await response.body()


async def test_requests_in_turn_share_a_connection() -> None:
    async with serving([reply(b"one"), reply(b"two")]) as (server, address):
        client = HttpClient(address)
        assert [await body_of(client, "/a", b"{}"), await body_of(client, "/b")] == [b"one", b"two"]
        client.close()
    assert server.requests == [(0, "POST /a HTTP/1.1", b"{}"), (0, "POST /b HTTP/1.1", b"")]


async def test_requests_at_one_time_have_connections_of_their_own() -> None:
    async with serving([reply(b"one")], [reply(b"two")]) as (server, address):
        client = HttpClient(address)
        async with client.request("GET", "/a") as first, client.request("GET", "/b") as second:
            assert (await first.body(), await second.body()) == (b"one", b"two")
        client.close()
    assert server.accepted == 2


async def test_the_prefix_of_an_address_precedes_every_path() -> None:
    async with serving([reply()]) as (server, address):
        client = HttpClient(f"{address}/engine/")
        await body_of(client, "/v1/models")
        client.close()
    assert server.requests[0][1] == "POST /engine/v1/models HTTP/1.1"
    assert "\r\nhost: 127.0.0.1\r\n" in server.heads[0]


async def test_a_body_may_come_in_chunks() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with serving([chunked, reply(b"next")]) as (server, address):
        client = HttpClient(address)
        assert [await body_of(client), await body_of(client)] == [b"abcde", b"next"]
        client.close()
    assert server.accepted == 1


@pytest.mark.parametrize("status", ["204 No Content", "404 Not Found", "503 Service Unavailable"])
async def test_every_status_is_a_response(status: str) -> None:
    async with serving([reply(b"", status)]) as (_, address):
        client = HttpClient(address)
        async with client.request("GET", "/x") as response:
            assert response.status == int(status[:3])
        client.close()


async def test_a_connection_that_the_server_wants_to_close_is_not_reused() -> None:
    closing = reply(b"one", "200 OK", "connection: close")
    async with serving([closing, reply(b"never")], [reply(b"two")]) as (server, address):
        client = HttpClient(address)
        assert [await body_of(client), await body_of(client)] == [b"one", b"two"]
        client.close()
    assert [number for number, _, _ in server.requests] == [0, 1]


async def test_a_response_that_was_not_read_to_its_end_is_not_reused() -> None:
    unfinished = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart"
    async with serving([unfinished, reply(b"never")], [reply(b"two")]) as (server, address):
        client = HttpClient(address)
        async with client.request("GET", "/x") as response:
            assert response.status == 200
        assert await body_of(client) == b"two"
        client.close()
    assert server.accepted == 2


async def test_a_request_on_a_connection_that_was_closed_meanwhile_is_sent_again() -> None:
    async with serving([reply(b"one"), None], [reply(b"two")]) as (server, address):
        client = HttpClient(address)
        assert await body_of(client) == b"one"
        assert await body_of(client, "/again", b"{}") == b"two"
        client.close()
    assert server.requests[1:] == [(0, "POST /again HTTP/1.1", b"{}"), (1, "POST /again HTTP/1.1", b"{}")]


async def test_a_request_on_a_new_connection_is_sent_once() -> None:
    async with serving([None], [reply(b"never")]) as (server, address):
        with pytest.raises(UpstreamLost, match="closed the connection before its answer was complete"):
            await body_of(HttpClient(address))
    assert server.accepted == 1


async def test_a_request_whose_response_had_begun_is_not_sent_again() -> None:
    async with serving([reply(b"one"), b"HTTP/1.1 200"], [reply(b"never")]) as (server, address):
        client = HttpClient(address)
        assert await body_of(client) == b"one"
        with pytest.raises(UpstreamLost):
            await body_of(client)
    assert server.accepted == 1


async def test_a_body_that_ends_early_is_lost_after_its_pieces() -> None:
    async with (
        serving([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart"]) as (_, address),
        HttpClient(address).request("GET", "/x") as response,
    ):
        pieces = response.pieces()
        assert await anext(pieces) == b"part"
        with pytest.raises(UpstreamLost, match="before its answer was complete"):
            await anext(pieces)


@pytest.mark.parametrize("garbage", [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n"])
async def test_a_server_that_speaks_another_protocol_is_lost(garbage: bytes) -> None:
    async with serving([garbage]) as (_, address):
        with pytest.raises(UpstreamLost):
            await body_of(HttpClient(address))


async def test_an_address_without_a_server_is_named() -> None:
    async with serving() as (_, address):
        pass
    with pytest.raises(UpstreamLost, match=rf"Nothing answers at {address} .*Is the engine running\?"):
        await body_of(HttpClient(address))


async def test_a_unix_socket_is_an_address_too(tmp_path: Path) -> None:
    async with serving([reply(b"one")], path=tmp_path / "engine.sock") as (server, address):
        client = HttpClient(address)
        assert await body_of(client) == b"one"
        client.close()
    assert "\r\nhost: localhost\r\n" in server.heads[0]


async def test_a_missing_unix_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(UpstreamLost, match="Nothing answers at unix:"):
        await body_of(HttpClient(f"unix:{tmp_path}/engine.sock"))


@pytest.mark.parametrize("address", ["https://host:1", "host:8000", "http://", "ftp://host", ""])
async def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not an engine's address: give `http://host:port`"):
        HttpClient(address)


@pytest.mark.parametrize(
    ("answer", "healthy"), [(reply(), True), (reply(b"", "503 Service Unavailable"), False), (None, False)]
)
async def test_a_probe_is_answered_with_status_200(answer: bytes | None, healthy: bool) -> None:
    async with serving([answer]) as (server, address):
        client = HttpClient(address)
        assert await client.answers("/health") is healthy
        client.close()
    assert server.requests == [(0, "GET /health HTTP/1.1", b"")]


@dataclass
class Greeted:
    """Accepts servers that greet with `mine`."""

    greetings: list[tuple[int, bytes]] = field(default_factory=list)

    def check(self, status: int, body: bytes) -> None:
        self.greetings.append((status, body))
        if body != b"mine":
            raise UpstreamLost("The engine was restarted.")


async def test_every_new_connection_is_greeted_first() -> None:
    greeted = Greeted()
    lines = [reply(b"mine"), reply(b"one"), reply(b"two")]
    async with serving(lines) as (server, address):
        client = HttpClient(address, greeting=Greeting("/version", greeted.check))
        assert [await body_of(client), await body_of(client)] == [b"one", b"two"]
        client.close()
    assert greeted.greetings == [(200, b"mine")]
    assert [line for _, line, _ in server.requests] == [
        "GET /version HTTP/1.1",
        "POST /x HTTP/1.1",
        "POST /x HTTP/1.1",
    ]


async def test_a_server_that_fails_the_greeting_gets_no_request() -> None:
    greeted = Greeted()
    async with serving([reply(b"other"), reply(b"never")]) as (server, address):
        with pytest.raises(UpstreamLost, match="The engine was restarted"):
            await body_of(HttpClient(address, greeting=Greeting("/version", greeted.check)))
    assert [line for _, line, _ in server.requests] == ["GET /version HTTP/1.1"]


async def test_a_server_that_closes_after_the_greeting_is_connected_to_again() -> None:
    greeted = Greeted()
    closing = reply(b"mine", "200 OK", "connection: close")
    async with serving([closing], [reply(b"one")]) as (server, address):
        client = HttpClient(address, greeting=Greeting("/version", greeted.check))
        assert await body_of(client) == b"one"
        client.close()
    assert [(number, line) for number, line, _ in server.requests] == [
        (0, "GET /version HTTP/1.1"),
        (1, "POST /x HTTP/1.1"),
    ]


async def test_a_closed_client_drops_its_idle_connections() -> None:
    async with serving([reply(b"one"), reply(b"never")], [reply(b"two")]) as (server, address):
        client = HttpClient(address)
        assert await body_of(client) == b"one"
        client.close()
        assert await body_of(client) == b"two"
        client.close()
    assert server.accepted == 2
