"""The setup proxy: what its list says, what it connects, refuses and drops."""

import asyncio
import socket
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest

from harnessgym.errors import CapabilityError, TaskError
from harnessgym.sandbox import Capability
from harnessgym.sandboxes.egress import Egress
from harnessgym.sandboxes.hosts import HostList, is_public, parse
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits, Setup, Task
from harnessgym.task_setup.workspace_setup import set_up

pytestmark = pytest.mark.anyio
BACKENDS = ("bubblewrap", "docker")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("https://packages.example/simple", "it has a scheme; write 'packages.example'"),
        ("packages.example/simple", "it has a path; write 'packages.example'"),
        ("10.0.0.1/8", "bits beyond its prefix; write '10.0.0.0/8'"),
        ("10.0.0.0/99", "'99' is no prefix length"),
        ("packages.example:0", "'0' is no port"),
        ("packages.example:http", "'http' is no port"),
        ("py*.org", "can only stand in front"),
        ("*", "can only stand in front"),
        ("", "write a host name"),
        ("256.1.1.1", "write a host name"),
        ("a b.org", "write a host name"),
        ("-x.org", "write a host name"),
    ],
)
def test_what_is_no_host_is_refused_with_a_reason(text, says):
    with pytest.raises(TaskError) as caught:
        parse(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "host", "port", "listed"),
    [
        ("packages.example", "packages.example", 443, True),
        ("Packages.Example.", "packages.example", 80, True),
        ("packages.example", "packages.example", 22, False),
        ("packages.example:22", "packages.example", 22, True),
        ("packages.example:22", "packages.example", 443, False),
        ("packages.example", "evil-packages.example", 443, False),
        ("packages.example", "packages.example.evil.com", 443, False),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("*.example.org:8080", "deb.example.org", 8080, True),
    ],
)
def test_names(entry, host, port, listed):
    assert HostList([entry]).names(host, port) is listed


@pytest.mark.parametrize(
    ("entry", "address", "port", "listed"),
    [
        ("203.0.113.7", "203.0.113.7", 80, True),
        ("203.0.113.7", "::ffff:203.0.113.7", 80, True),
        ("203.0.113.7:8080", "203.0.113.7", 80, False),
        ("10.0.0.0/8", "10.200.3.4", 443, True),
        ("10.0.0.0/8", "11.0.0.1", 443, False),
        ("2001:db8::7", "2001:db8::7", 443, True),
        ("[2001:db8::7]:8443", "2001:db8::7", 8443, True),
        ("2001:db8::/32", "2001:db8:1::1", 443, True),
    ],
)
def test_addresses(entry, address, port, listed):
    assert HostList([entry]).holds(ip_address(address), port) is listed


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "169.254.169.254",
        "10.1.2.3",
        "192.168.0.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.251",
        "240.0.0.1",
        "::1",
        "fe80::1",
        "fd00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
    ],
)
def test_addresses_a_name_may_not_stand_for(address):
    assert not is_public(ip_address(address))


def test_public_addresses_are_public():
    assert is_public(ip_address("1.1.1.1"))
    assert is_public(ip_address("2606:4700::1111"))


def test_programs_are_told_of_the_proxy_but_not_for_their_own_loopback():
    env = Egress(["packages.example"]).env
    assert env["HTTPS_PROXY"] == env["http_proxy"] == "http://127.0.0.1:8079"
    assert env["NO_PROXY"] == "localhost,127.0.0.1,::1"
    assert Egress(["127.0.0.1:99"]).env["no_proxy"] == "localhost,::1"


class Origin:
    """A server that echoes what it was sent, one answer per connection."""

    def __init__(self):
        self.heads = []
        self.connections = 0

    async def serve(self, reader, writer):
        try:
            await self.answer(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def answer(self, reader, writer):
        self.connections += 1
        head = await reader.read(65536)
        self.heads.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        await writer.drain()
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def served(hosts):
    """An origin, the setup proxy before it, and a way to say something to that and read the answer."""
    origin = Origin()
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    egress = Egress([host.replace("PORT", str(port)) for host in hosts])
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    serving = await egress.serve(listener)
    ours = []

    async def say(text):
        reader, writer = await asyncio.open_connection(*address)
        ours.append(writer)
        writer.write(text.replace("PORT", str(port)).encode())
        answer = await asyncio.wait_for(reader.read(65536), 5)
        return answer.decode(), reader, writer

    try:
        yield origin, egress, serving, say, address
    finally:
        serving.close()
        server.close()
        for writer in ours:
            writer.close()
        await asyncio.sleep(0.01)


async def test_an_allowed_address_is_reached_with_an_absolute_url():
    async with served(["127.0.0.1:PORT"]) as (origin, egress, _, say, _):
        answer, _, _ = await say(
            "POST http://127.0.0.1:PORT/a?b=1 HTTP/1.1\r\nHost: other\r\nProxy-Connection: keep-alive\r\n"
            "Proxy-Authorization: Basic x\r\nContent-Length: 3\r\n\r\nabcGET http://elsewhere/ "
            "HTTP/1.1\r\n\r\n"
        )
        assert answer.endswith("hello")
        head = origin.heads[0].decode()
        assert head.startswith("POST /a?b=1 HTTP/1.1\r\n")
        assert head.endswith("\r\n\r\nabc")
        assert "other" not in head
        assert "elsewhere" not in head
        assert "roxy" not in head
        (attempt,) = egress.attempts
        assert (attempt.host, attempt.allowed, attempt.reason) == ("127.0.0.1", True, "")
        assert attempt.received == len(answer)
        assert attempt.sent == len(head)


async def test_connect_carries_bytes_both_ways_unopened():
    async with served(["127.0.0.1:PORT"]) as (_, egress, _, say, _):
        answer, reader, writer = await say(
            "CONNECT 127.0.0.1:PORT HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03 not http"
        )
        while "hello" not in answer:
            answer += (await reader.read(65536)).decode()
        writer.write(b"more")
        assert await asyncio.wait_for(reader.readexactly(4), 5) == b"more"
        writer.close()
        assert answer.startswith("HTTP/1.1 200 Connected")
        assert egress.attempts[0].sent == 2 + len(" not http") + 4


@pytest.mark.parametrize(
    ("hosts", "request_line", "status", "says"),
    [
        (["packages.example"], "CONNECT 127.0.0.1:PORT HTTP/1.1", 403, "127.0.0.1:"),
        (
            ["packages.example"],
            "CONNECT 169.254.169.254:80 HTTP/1.1",
            403,
            "169.254.169.254:80 is not on the list",
        ),
        (["packages.example"], "GET http://example.org/ HTTP/1.1", 403, "example.org:80 is not on the list"),
        (
            ["packages.example"],
            "CONNECT packages.example:22 HTTP/1.1",
            403,
            "packages.example:22 is not on the list",
        ),
        (["packages.example"], "CONNECT 0x7f.1:80 HTTP/1.1", 403, "not on the list"),
        (
            ["localhost:PORT"],
            "CONNECT localhost:PORT HTTP/1.1",
            403,
            "which is not public and not on the list itself",
        ),
        (["nowhere.invalid"], "CONNECT nowhere.invalid:443 HTTP/1.1", 502, "cannot be looked up"),
        (["127.0.0.1:1"], "CONNECT 127.0.0.1:1 HTTP/1.1", 502, "cannot be reached"),
        (["packages.example"], "GET /control/sessions HTTP/1.1", 400, "is not understood"),
        (["packages.example"], "GET ftp://packages.example/ HTTP/1.1", 400, "is not understood"),
        (["packages.example"], "CONNECT packages.example HTTP/1.1", 400, "is not understood"),
    ],
)
async def test_the_rest_is_refused_with_a_sentence(hosts, request_line, status, says):
    async with served(hosts) as (origin, egress, _, say, _):
        answer, _, _ = await say(f"{request_line}\r\nHost: x\r\n\r\n")
        assert answer.startswith(f"HTTP/1.1 {status} ")
        assert says in answer
        assert origin.connections == 0
        assert [attempt.allowed for attempt in egress.attempts] == ([] if status == 400 else [status == 502])


async def test_a_name_that_stands_for_a_listed_address_is_reached():
    async with served(["localhost:PORT", "127.0.0.0/8", "127.0.0.1:PORT"]) as (_, _, _, say, _):
        assert (await say("CONNECT localhost:PORT HTTP/1.1\r\nHost: x\r\n\r\n"))[0].startswith(
            "HTTP/1.1 200 "
        )


async def test_closing_drops_every_connection_and_the_listener():
    async with served(["127.0.0.1:PORT"]) as (_, _, serving, say, address):
        _, reader, _ = await say("CONNECT 127.0.0.1:PORT HTTP/1.1\r\nHost: x\r\n\r\n")
        serving.close()
        try:
            left = await asyncio.wait_for(reader.read(), 5)
        except ConnectionResetError:
            left = b""
        assert left == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)


_FETCH = """
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=5).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
    except OSError as error:
        print("unreachable", type(error).__name__)
"""


async def test_a_setup_command_reaches_what_is_listed_and_nothing_after_it(backend):
    assert Capability.HOSTS in backend.capabilities
    async with served(["127.0.0.1:PORT"]) as (origin, egress, _, _, _):
        port = next(iter(egress.hosts.entries[0].ports))
        listed, other = f"http://127.0.0.1:{port}/a", f"http://127.0.0.1:{port + 1}/b"
        async with backend.open(Limits(wall_s=30)) as sandbox:
            command = [
                "python3",
                "-c",
                _FETCH,
                listed,
                other,
                "http://169.254.169.254/latest",
                "http://example.org/",
            ]
            first = (await sandbox.exec(command, outside=egress)).stdout.decode().splitlines()
            assert first[0] == "hello"
            assert [line.partition(" is ")[0] for line in first[1:]] == [
                f"403 127.0.0.1:{port + 1}",
                "403 169.254.169.254:80",
                "403 example.org:80",
            ]
            assert [(each.host, each.allowed) for each in egress.attempts] == [
                ("127.0.0.1", True),
                ("127.0.0.1", False),
                ("169.254.169.254", False),
                ("example.org", False),
            ]
            later = await sandbox.exec(command, env=egress.env)
            assert {line.split()[0] for line in later.stdout.decode().splitlines()} == {"unreachable"}
            assert origin.connections == 1


async def test_what_a_setup_command_leaves_behind_reaches_nothing(backend):
    async with served(["127.0.0.1:PORT"]) as (origin, egress, _, _, _):
        port = next(iter(egress.hosts.entries[0].ports))
        loop = f"while sleep 0.1; do python3 -c '{_FETCH}' http://127.0.0.1:{port}/; done"
        async with backend.open(Limits(wall_s=30)) as sandbox:
            await sandbox.exec(
                ["sh", "-c", '(setsid sh -c "$0" >/dev/null 2>&1 &); sleep 0.3', loop], outside=egress
            )
            before = origin.connections
            await asyncio.sleep(0.5)
            assert origin.connections == before


async def test_a_task_is_set_up_with_its_hosts(backend):
    async with served(["127.0.0.1:PORT"]) as (_, egress, _, _, _):
        port = next(iter(egress.hosts.entries[0].ports))
        run = (("sh", "-c", f"python3 fetch.py http://127.0.0.1:{port}/ > got.txt"),)
        task = Task("t", "Do it.", files={"fetch.py": _FETCH}, setup=Setup(run, (f"127.0.0.1:{port}",)))
        async with backend.open(task.limits) as sandbox:
            await sandbox.write("fetch.py", _FETCH.encode())
            await set_up(task.setup, sandbox, "task")
            assert await sandbox.read("got.txt") == b"hello\n"


async def test_a_sandbox_that_cannot_bound_it_refuses(tmp_path, anyio_backend):
    async with (
        ProcessBackend(ProcessSettings(workspace_root=tmp_path / "w")) as opened,
        opened.open(Limits()) as sandbox,
    ):
        with pytest.raises(CapabilityError, match="does not offer hosts"):
            await sandbox.exec(["true"], outside=Egress(["packages.example"]))
