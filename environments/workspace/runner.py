"""Runs the commands of an episode one after another. It stays in the sandbox for the whole episode.

    python runner.py PORT

It connects to PORT on its loopback and reads one order per line, as JSON: `{"command": ..., "timeout_s":
..., "most": ...}`. It answers with a JSON line, `{"status", "timed_out", "lost", "size"}`, and `size` bytes:
the end of standard output and error, interleaved. The `lost` bytes before them were dropped. When it answers,
every process that the command started is dead.

It runs with the agent's rights, so a command can kill it or forge its answers. That fools only the agent
itself: the other end treats them as output of the command, and grading uses none of it.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

_PIECE = 1 << 16
_DEATH_S = 5.0


def main() -> None:
    """Serve until the other end closes."""
    # Not an assertion: Python may run without them, and elsewhere `_end_all` ends everything of this user.
    if os.getppid() != 1 or os.getpid() >= 16:
        sys.exit("The runner must be alone in a PID namespace.")
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line, line.makefile("rb") as orders:
        for order in orders:
            wanted = json.loads(order)
            answer, output = run(wanted["command"], wanted["timeout_s"], wanted["most"])
            line.sendall(json.dumps(answer).encode() + b"\n" + output)


def run(command: str, timeout_s: float, most: int) -> tuple[dict[str, Any], bytes]:
    """Run one command until all its processes are dead. Keeps the last `most` bytes of output."""
    reader, writer = os.pipe()
    quiet: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    loud = [(os.POSIX_SPAWN_DUP2, writer, stream) for stream in (1, 2)]
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", command],
        os.environ,
        file_actions=[*quiet, *loud],
        setsid=True,
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )
    os.close(writer)
    kept = OutputTail(most)
    timed_out = _follow(pid, reader, kept, time.monotonic() + timeout_s)
    if timed_out:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    _end_all()
    while data := os.read(reader, _PIECE):
        kept.add(data)
    os.close(reader)
    output = kept.last()
    code = os.waitstatus_to_exitcode(status)
    return {
        "status": code,
        "timed_out": timed_out,
        "lost": kept.size - len(output),
        "size": len(output),
    }, output


def _follow(pid: int, reader: int, kept: "OutputTail", deadline: float) -> bool:
    """Read output until the command ends or its time is up. Returns whether its time was up."""
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(reader, select.POLLIN)
    try:
        while (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left * 1000):
                if descriptor == ended:
                    return False
                data = os.read(reader, _PIECE)
                kept.add(data)
                if not data:
                    poll.unregister(reader)
        return True
    finally:
        os.close(ended)


def _end_all() -> None:
    """Kill every process of this namespace except its init and this one, until none is left.

    Init reaps them.
    """
    deadline = time.monotonic() + _DEATH_S
    while time.monotonic() < deadline:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.0005)
    os._exit(1)  # processes that fork faster than this die with the namespace


class OutputTail:
    """The last bytes of a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Append data."""
        self.size += len(data)
        self._bytes += data
        if len(self._bytes) > 2 * self._most + _PIECE:
            del self._bytes[: -self._most]

    def last(self) -> bytes:
        """The last `most` bytes."""
        return bytes(self._bytes[-self._most :])


if __name__ == "__main__":
    main()
