"""Runs the commands of an episode one after another: a program that lives in the sandbox as long as the
episode does.

    python runner.py PORT

It takes orders from a connection to PORT of its loopback, a JSON line each: `{"command": ..., "timeout_s":
..., "most": ...}`. It answers with a JSON line, `{"status", "timed_out", "lost", "size"}`, and `size` bytes:
the last of standard output and error, as they came, of which `lost` bytes before them are not kept. When it
answers, everything that the command started is dead.

It runs as the agent does, so a command can kill it or speak in its place. That deceives nobody but the agent:
whoever is at the other end takes what comes as output, and nothing that is judged passes here.
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
    assert (
        os.getppid() == 1
    )  # alone in a PID namespace; elsewhere `_end_all` would end everything of this user
    assert os.getpid() < 16
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line, line.makefile("rb") as orders:
        for order in orders:
            wanted = json.loads(order)
            answer, output = run(wanted["command"], wanted["timeout_s"], wanted["most"])
            line.sendall(json.dumps(answer).encode() + b"\n" + output)


def run(command: str, timeout_s: float, most: int) -> tuple[dict[str, Any], bytes]:
    """One command, from its start until everything of it is dead."""
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
    kept = Kept(most)
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


def _follow(pid: int, reader: int, kept: "Kept", deadline: float) -> bool:
    """Takes output until the command ends, which is False, or its time is up."""
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
    """Kills every process of this namespace but its init and this one, until there is none; init collects
    them.
    """
    deadline = time.monotonic() + _DEATH_S
    while time.monotonic() < deadline:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.0005)
    os._exit(1)  # whoever breeds that fast dies with the namespace


class Kept:
    """The last bytes of a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        """More of it."""
        self.size += len(data)
        self._bytes += data
        if len(self._bytes) > 2 * self._most + _PIECE:
            del self._bytes[: -self._most]

    def last(self) -> bytes:
        """What is kept."""
        return bytes(self._bytes[-self._most :])


if __name__ == "__main__":
    main()
