"""A command's output: passes on every piece as it comes, keeps the last bytes, and slows down floods.

A pipe is read on the event loop. When the command is dead, the rest of its output is already in the pipe.
`PipeReader.finish` reads that and closes the pipe, even if other processes still hold it open.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import Literal

from harnessgym.sandbox import OnOutput

_PIECE = 1 << 16
_PAUSE_S = 0.002
"""Pause between pieces once bytes are dropped, so that a flood is read at about 30 MB/s."""


class Output:
    """The last `limit` bytes of one stream."""

    def __init__(
        self, stream: Literal["stdout", "stderr"], limit: int, on_output: OnOutput | None = None
    ) -> None:
        self._stream: Literal["stdout", "stderr"] = stream
        self._limit = limit
        self._on_output = on_output
        self._ring = bytearray()
        self._oldest = 0
        self.size = 0
        """Bytes written so far, including dropped ones."""

    @property
    def truncated(self) -> bool:
        """Whether bytes were dropped."""
        return self.size > self._limit

    @property
    def data(self) -> bytes:
        """The kept bytes, in order."""
        view = memoryview(self._ring)
        return b"".join((view[self._oldest :], view[: self._oldest]))

    def add(self, piece: bytes) -> None:
        """Keeps a piece and passes it to `on_output`. Overwrites the oldest bytes beyond `limit`."""
        # The ring first grows to `limit` bytes, then wraps around. Slicing instead would copy the kept bytes
        # for every piece.
        self.size += len(piece)
        rest = memoryview(piece)[max(0, len(piece) - self._limit) :]
        room = self._limit - len(self._ring)
        self._ring += rest[:room]
        rest = rest[room:] if room > 0 else rest
        while rest:
            part = rest[: self._limit - self._oldest]
            self._ring[self._oldest : self._oldest + len(part)] = part
            self._oldest = (self._oldest + len(part)) % self._limit
            rest = rest[len(part) :]
        if self._on_output is not None:
            self._on_output(self._stream, piece)


class PipeReader:
    """Reads the pipe `descriptor`, which it owns, into `output` until its end, or until `finish` or `close`.

    If `on_output` raises, reading stops, `on_failure` is called, and `finish` raises the error again.
    """

    def __init__(self, descriptor: int, output: Output, on_failure: Callable[[], None] | None = None) -> None:
        self._descriptor = descriptor
        self._output = output
        self._on_failure = on_failure
        self._failure: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._take)

    @property
    def ended(self) -> bool:
        """Whether the pipe has ended or reading has stopped."""
        return self._descriptor < 0

    def finish(self) -> None:
        """Reads what is in the pipe and closes it. Never waits, so call it once the writer is dead."""
        # One pipe's capacity bounds what a dead writer left. Without the bound, another process that holds
        # the pipe and keeps writing would keep us here.
        left = fcntl.fcntl(self._descriptor, fcntl.F_GETPIPE_SZ) if not self.ended else 0
        while left > 0 and not self.ended:
            size = self._read()
            if size == 0:
                break
            left -= size
        self.close()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stops reading. May be called twice."""
        if self._pause is not None:
            self._pause.cancel()
        if not self.ended:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self) -> None:
        """Reads one piece; pauses if bytes are dropped."""
        self._read()
        if self._output.truncated and not self.ended:
            self._loop.remove_reader(self._descriptor)
            self._pause = self._loop.call_later(_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._loop.add_reader(self._descriptor, self._take)

    def _read(self) -> int:
        """Reads one piece. Returns its size: 0 if the pipe is empty or has ended."""
        piece = b""
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self._descriptor, _PIECE)
            if not piece:
                self.close()
                return 0
        if piece:
            self._show(piece)
        return len(piece)

    def _show(self, piece: bytes) -> None:
        try:
            self._output.add(piece)
        # The caller's function may raise anything; `finish` raises it again.
        except Exception as error:  # noqa: BLE001
            self._failure = error
            self.close()
            if self._on_failure is not None:
                self._on_failure()
