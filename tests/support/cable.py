"""A connection to the Docker engine that can be cut: a unix socket that forwards to another one while it
is plugged in.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Self

_PIECE = 1 << 16
_ARRIVAL_S = 0.01
"""Time for the loop to start tasks for connections just accepted, so that `pull` drops them too, and to
close dropped ones."""


class Cable:
    """Forwards `path` to `target` on a thread of its own. Starts plugged in.

    ```python
    with Cable(folder / "engine.sock", Path("/var/run/docker.sock")) as cable:
        client = docker.APIClient(f"unix://{cable.path}")
        cable.pull()
        cable.plug()
    ```
    """

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cable", daemon=True)
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()
        self.dropped = 0
        """Number of open connections that were cut."""

    def __enter__(self) -> Self:
        self._thread.start()
        self.plug()
        return self

    def __exit__(self, *exc: object) -> None:
        self.pull()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def plug(self) -> None:
        """Accept connections again."""
        self._wait(self._plug())

    def pull(self) -> None:
        """Drop every connection and refuse new ones."""
        self._wait(self._pull())

    def _wait(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _plug(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self.path)

    async def _pull(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.path.unlink(missing_ok=True)
        await asyncio.sleep(_ARRIVAL_S)
        carrying = list(self._carrying)
        self.dropped += len(carrying)
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)
        await asyncio.sleep(_ARRIVAL_S)  # lets transports close whose connection was still being made

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        there: asyncio.StreamWriter | None = None
        try:
            answers, there = await asyncio.open_unix_connection(self._target)
            await asyncio.gather(_pump(reader, there), _pump(answers, writer))
        except (OSError, asyncio.CancelledError):
            pass  # the cable was pulled
        finally:
            self._carrying.discard(task)
            for end in (writer, there):
                if end is not None:
                    end.transport.abort()
                    with contextlib.suppress(OSError):
                        await end.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
