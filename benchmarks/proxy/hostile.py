"""One session that does what no honest harness does, for as long as its process lives, at most two minutes.

    python -m benchmarks.proxy.hostile KIND < load.json

Its requests are real ones: they go to the proxy of the benchmark on this machine and nowhere else.
"""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import uvloop

from benchmarks.proxy.client import Load

_LONGEST_S = 120.0
_NICE = 5
"""Its own work, such as writing 60 MB, is done elsewhere where agents run elsewhere."""
_CONNECTIONS = 32
_SLOW = 200
_STREAMS = 500
_PAUSE_S = 0.2


def _head(load: Load, length: int) -> bytes:
    return (
        f"POST {load.paths[0]} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {load.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


def _request(load: Load, text: str, **more: object) -> bytes:
    body = {"model": "policy", "messages": [{"role": "user", "content": text}], **more}
    data = json.dumps(body).encode()
    return _head(load, len(data)) + data


async def _exchange(load: Load, request: bytes, seen: Counter[str]) -> None:
    """Send a request, read the answer, count its status."""
    reader, writer = await asyncio.open_connection(load.host, load.port)
    try:
        writer.write(request)
        with suppress(ConnectionError):  # refused before all was sent
            await writer.drain()
        status = await reader.readline()
        seen[status.decode().split(" ")[1] if status else "closed"] += 1
    except ConnectionError:
        seen["closed"] += 1
    finally:
        writer.close()


async def _again(load: Load, text: str, seen: Counter[str]) -> None:
    """The same text again and again, each time as a new request."""
    number = 0
    while True:
        number += 1
        await _exchange(load, _request(load, f"{number} {text}"), seen)


async def _refused(load: Load, seen: Counter[str]) -> None:
    """10,000 requests that are refused, from many connections."""

    async def one() -> None:
        for _ in range(10_000 // _CONNECTIONS):
            await _exchange(load, _request(load, "hi", max_tokens="many"), seen)

    await asyncio.gather(*(one() for _ in range(_CONNECTIONS)))


async def _slow(load: Load, seen: Counter[str]) -> None:
    """Bodies of which a byte comes now and then."""

    async def one() -> None:
        while True:
            _, writer = await asyncio.open_connection(load.host, load.port)
            writer.write(_head(load, 100_000))
            with suppress(ConnectionError):
                while not writer.is_closing():
                    writer.write(b" ")
                    await writer.drain()
                    seen["bytes"] += 1
                    await asyncio.sleep(_PAUSE_S)
            writer.close()

    await asyncio.gather(*(one() for _ in range(_SLOW)))


async def _streams(load: Load, seen: Counter[str]) -> None:
    """500 streams at a time, whose answers nobody reads to the end."""

    async def one(number: int) -> None:
        turn = 0
        while True:
            turn += 1
            await _exchange(load, _request(load, f"{number} {turn}", stream=True), seen)
            await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(*(one(number) for number in range(_STREAMS)))


def _source(size: int) -> str:
    text = Path(__file__).with_name("client.py").read_text()
    return (text * (size // len(text) + 1))[:size]


def _sends(text: str) -> Callable[[Load, "Counter[str]"], Awaitable[None]]:
    return lambda load, seen: _again(load, text, seen)


KINDS: dict[str, Callable[[], Callable[[Load, "Counter[str]"], Awaitable[None]]]] = {
    "1 MB bodies": lambda: _sends(_source(10**6)),
    "3 MB of one letter": lambda: _sends("a" * (3 * 10**6)),
    "8 MB bodies": lambda: _sends(_source(8 * 10**6)),
    "60 MB bodies": lambda: _sends(_source(60 * 10**6)),
    "10,000 refused calls": lambda: _refused,
    "200 slow bodies": lambda: _slow,
    "500 open streams": lambda: _streams,
}
"""What a hostile session does, by name."""


async def _run(load: Load, kind: str) -> "Counter[str]":
    seen = Counter[str]()
    task = asyncio.ensure_future(KINDS[kind]()(load, seen))
    print("begun", flush=True)
    loop = asyncio.get_running_loop()
    # The end of stdin says that enough was measured.
    ended = loop.run_in_executor(None, sys.stdin.read)
    await asyncio.wait({task, ended}, timeout=_LONGEST_S, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await asyncio.wait({ended}, timeout=_LONGEST_S)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return seen


def main() -> None:
    """The process. Its first line of stdin is the load; it ends with stdin."""
    os.nice(_NICE)
    load = Load(**json.loads(sys.stdin.readline()))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_run(load, sys.argv[1]))), flush=True)


if __name__ == "__main__":
    main()
