"""The front as the core's child: started with its sockets, watched, ended with the core."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator


class FrontProcess:
    """A front that has been started and, at the other end of `link`, waits to be told what to serve.

    It is killed when the thread that makes it ends: make it on the main thread.
    """

    def __init__(self, listener: socket.socket) -> None:
        """Start it; it takes the listening socket over."""
        self.link, far = socket.socketpair()
        fds = (far.fileno(), listener.fileno())
        argv = [sys.executable, "-m", "trainers.engine.front", *map(str, fds), str(os.getpid())]
        with far, listener, _interrupts_blocked():
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=fds)

    def stop(self, grace_s: float) -> None:
        """Have it take no more requests, and wait for those it has for at most `grace_s`."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)

    def reap(self) -> int:
        """Wait for one that has let go of the link; its exit status."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        return self.close()

    def close(self) -> int:
        """End it, within half a second; its exit status."""
        self.stop(0.5)
        self._process.kill()
        self.link.close()
        return self._process.wait()


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """SIGINT is held back from this thread, and from a process started meanwhile for good."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
