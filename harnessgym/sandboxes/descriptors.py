"""Descriptors that commands are given, and waiting for one to be readable."""

import asyncio
import os
import socket


def stdin_of(data: bytes | None) -> int:
    """A descriptor that a command reads `data` from, to its end; of None, the end comes at once. The
    caller closes it.
    """
    if data is None:
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = os.memfd_create("stdin")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def readable(waited: socket.socket) -> None:
    """Returns when a socket has something to read, a connection to accept, or its end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(waited, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(waited)
