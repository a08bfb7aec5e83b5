"""The protocol between node and fork server: one order in and a few events out, on one stream socket per
rollout.

An order is a length-prefixed JSON object. Events are JSON objects, one a line; the `listening` event carries
the listener's file descriptor beside it. End of file on either side means: the rollout is over, kill
everything.
"""

import json
import socket
import struct
from dataclasses import asdict, dataclass, field
from typing import Literal

LENGTH = struct.Struct("!I")
FORK = b"F"
"""One fork request on the control socket, with its four descriptors: the rollout's channel, stdin, stdout,
stderr."""
READY = b"R"
"""The server's answer once it is warm."""


@dataclass(frozen=True, slots=True)
class ForkOrder:
    """One program to run, with its environment, folder, limits and isolation."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    workspace: str
    """Where the server sees the rollout's folder."""
    python: bool = False
    """Run `argv[1:]` (a file, or `-m module`) in the forked interpreter instead of executing `argv`."""
    memory_bytes: int = 0
    """Address space of each process; 0 leaves it unlimited."""
    processes: int = 0
    """Processes and threads of the rollout; 0 leaves them unlimited."""
    file_bytes: int = 0
    """Largest file; 0 leaves it unlimited."""
    timeout_s: float = 0.0
    """Seconds after which its init ends the program; 0 means no limit."""
    tmp_bytes: int = 0
    """Size of each private in-memory file system."""
    port: int = 0
    """Loopback port the rollout reaches its proxy at; 0 opens none."""
    hidden: list[str] = field(default_factory=list)
    """Folders to cover, because they hold other rollouts' files or tasks' solutions."""
    exposed: list[str] = field(default_factory=list)
    """Files and folders below covered ones that must stay visible, read-only."""
    replaced: dict[str, str] = field(default_factory=dict)
    """Files to put in the place of others: path of the replacement to the path that it gets."""
    judges: bool = False
    """Whether the program may run code that must not trace it or change its memory."""
    namespaces: bool = True


@dataclass(frozen=True, slots=True)
class ForkEvent:
    """An event of a rollout."""

    kind: Literal["listening", "started", "exited", "failed"]
    code: int | None = None
    signal: int | None = None
    cpu_s: float = 0.0
    """Processor time of the harness and everything it started."""
    timed_out: bool = False
    message: str = ""


def pack_order(order: ForkOrder) -> bytes:
    """The bytes of an order, ready for the channel."""
    body = json.dumps(asdict(order)).encode()
    return LENGTH.pack(len(body)) + body


def receive_order(channel: socket.socket) -> ForkOrder:
    """Reads an order; blocks until it is complete.

    Raises EOFError if the node closed the channel before that.
    """
    (length,) = LENGTH.unpack(_exactly(channel, LENGTH.size))
    return ForkOrder(**json.loads(_exactly(channel, length)))


def send_event(channel: socket.socket, event: ForkEvent, descriptors: list[int] | None = None) -> None:
    """Sends an event. Ignores that the node is gone: the end of file on the channel ends the rollout."""
    line = json.dumps(asdict(event)).encode() + b"\n"
    try:
        socket.send_fds(channel, [line], descriptors or [])
    except OSError:
        return


def parse_event(line: bytes) -> ForkEvent:
    """The event of one line."""
    return ForkEvent(**json.loads(line))


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            raise EOFError("The node closed the channel before the order was complete.")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
