"""The node's end of a runner's connection: answers are hostile, and only the first connection counts."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager

import pytest

from environments.workspace.shell import CommandOutput, RunnerConnection

pytestmark = pytest.mark.anyio
MOST = 1 << 18
"""Bytes that are kept of a command's output."""


@asynccontextmanager
async def connected():
    """A line, and the runner's reader and writer."""
    line = RunnerConnection()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await line.serve(listener)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await line.connected()
    try:
        yield line, reader, writer
    finally:
        writer.close()
        line.close()


def header(**fields):
    return json.dumps({"size": 0, "lost": 0, "status": 0, "timed_out": False} | fields).encode() + b"\n"


async def answered(answer, *, closes=False):
    """What a line makes of an answer."""
    async with connected() as (line, reader, writer):
        asking = asyncio.create_task(line.ask({"command": "ls"}))
        assert json.loads(await reader.readuntil(b"\n")) == {"command": "ls"}
        writer.write(answer)
        if closes:
            writer.close()
        async with asyncio.timeout(10):
            return await asking


async def test_an_answer_has_the_output_and_how_the_command_ended():
    output = await answered(header(size=3, lost=7, status=-9, timed_out=True) + b"end")
    assert output == CommandOutput("end", 7, -9, timed_out=True)


async def test_orders_are_answered_one_after_another():
    async with connected() as (line, reader, writer):
        outputs = []
        for text in (b"one", b"two"):
            writer.write(header(size=3) + text)
            outputs.append((await line.ask({"command": "ls"})).output)
            await reader.readuntil(b"\n")
        assert outputs == ["one", "two"]


async def test_bytes_that_are_no_text_are_replaced():
    assert (await answered(header(size=3) + b"a\xffb")).output == "a\ufffdb"


@pytest.mark.parametrize("value", [1, "true", None])
async def test_only_true_says_that_the_time_was_up(value):
    assert not (await answered(header(timed_out=value))).timed_out


async def test_the_most_output_may_come():
    assert (await answered(header(size=MOST) + b"x" * MOST)).output == "x" * MOST


@pytest.mark.parametrize(
    "answer",
    [
        header(size=MOST + 1),
        header(size=-1),
        header(lost=-1),
        header(lost=1 << 62),
        header(size="many"),
        b"not json\n",
        b"\xff\n",
    ],
)
async def test_an_answer_that_may_not_be_is_refused(answer):
    with pytest.raises(ValueError):
        await answered(answer)


@pytest.mark.parametrize(
    ("answer", "error"),
    [(b"{}\n", KeyError), (b"[]\n", TypeError), (b"3\n", TypeError), (header(size=None), TypeError)],
)
async def test_an_answer_of_another_shape_is_refused(answer, error):
    with pytest.raises(error):
        await answered(answer)


@pytest.mark.parametrize("answer", [b"", b'{"size": 0', header(size=5) + b"four"])
async def test_an_answer_that_ends_early_is_an_end(answer):
    with pytest.raises(EOFError):
        await answered(answer, closes=True)


async def test_a_header_without_an_end_is_not_read_for_ever():
    with pytest.raises(asyncio.LimitOverrunError):
        await answered(b"{" + b" " * 20_000)


async def test_a_second_connection_is_not_accepted():
    line = RunnerConnection()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    await line.serve(listener)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    await line.connected()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    line.close()


async def test_a_closed_line_closes_the_runner_s_connection():
    async with connected() as (line, reader, _):
        line.close()
        with pytest.raises((EOFError, ConnectionResetError)):
            await reader.readexactly(1)


async def test_a_line_may_be_closed_before_anyone_connects():
    line = RunnerConnection()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await line.serve(listener)
        line.close()
        with pytest.raises(asyncio.CancelledError):
            await line.connected()
