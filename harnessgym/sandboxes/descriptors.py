"""A command's stdin as a descriptor, and waiting until a socket is readable."""

import asyncio
import os
import socket


def stdin_of(data: bytes | None) -> int:
    """Returns a descriptor from which a command reads `data` (None: nothing). The caller closes it."""
    if data is None:
        return os.open(os.devnull, os.O_RDONLY)
    # A file in memory, not a pipe: nobody has to feed it, and the command cannot block us by not reading.
    descriptor = os.memfd_create("stdin")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def readable(waited: socket.socket) -> None:
    """Waits until a socket has data to read, a connection to accept, or has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(waited, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(waited)
