"""Many requests at once, over connections that cost next to nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from harnessgym.proxy_client import OpenedSession
from tests.proxies.conftest import World


@asynccontextmanager
async def connections(
    world: World, session: OpenedSession, texts: Iterable[str], **fields: Any
) -> AsyncIterator[list[asyncio.StreamReader]]:
    """A chat completion on a connection of its own for each text, all sent when all are connected."""
    assert world.proxy.url is not None
    host, port = world.proxy.url.removeprefix("http://").split(":")
    opened = [(text, await asyncio.open_connection(host, int(port))) for text in texts]
    for text, (_, writer) in opened:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
        data = json.dumps(body).encode()
        head = f"POST /s/{session.key}/v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    try:
        yield [reader for _, (reader, _) in opened]
    finally:
        for _, (_, writer) in opened:
            writer.close()


async def head_of(reader: asyncio.StreamReader) -> str:
    """The head of an answer."""
    return (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode()
