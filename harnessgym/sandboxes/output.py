"""What a command writes: every piece is shown as it comes, the last bytes are kept, and a flood costs its
writer, not us.

A pipe is read on the event loop. When the command is dead, all that it wrote lies in the pipe already:
`PipeReader.finish` takes that and goes, whoever else still holds the pipe open.
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
"""Between pieces once bytes are dropped: a flood is read at about 30 MB/s."""


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
        """Bytes that were written, dropped ones too."""

    @property
    def truncated(self) -> bool:
        """Whether bytes were dropped."""
        return self.size > self._limit

    @property
    def data(self) -> bytes:
        """What is kept, in order."""
        view = memoryview(self._ring)
        return b"".join((view[self._oldest :], view[: self._oldest]))

    def add(self, piece: bytes) -> None:
        """Keeps a piece, in place of the oldest bytes once there are `limit`, and shows it."""
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
    """Reads the pipe `descriptor`, which it owns, into `output` until its end or until `finish` or `close`.

    What `on_output` raises stops the reading, calls `on_failure`, and is raised again by `finish`.
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
        """Whether the pipe's end was seen, or reading stopped."""
        return self._descriptor < 0

    def finish(self) -> None:
        """Takes what lies in the pipe and closes it. Never waits: only when the writer is dead is that all
        it wrote.
        """
        left = fcntl.fcntl(self._descriptor, fcntl.F_GETPIPE_SZ) if not self.ended else 0
        while left > 0 and not self.ended:
            taken = self._read()
            if taken == 0:
                break
            left -= taken
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
        """One piece, and when bytes are dropped a pause."""
        self._read()
        if self._output.truncated and not self.ended:
            self._loop.remove_reader(self._descriptor)
            self._pause = self._loop.call_later(_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._loop.add_reader(self._descriptor, self._take)

    def _read(self) -> int:
        """Bytes read: 0 when there is nothing at the moment, or the end was reached."""
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
        except Exception as error:  # noqa: BLE001  # the caller's function may raise anything; finish() hands it back
            self._failure = error
            self.close()
            if self._on_failure is not None:
                self._on_failure()
