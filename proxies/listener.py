"""Listening sockets: inherited, unix or TCP."""

import os
import socket
from contextlib import suppress
from pathlib import Path

from harnessgym.errors import ConfigError

_BACKLOG = 1_024


def listen(
    fd: int | None, uds: Path | None, host: str, port: int | None, *, mode: int = 0o600
) -> socket.socket | None:
    """The first one given of an inherited socket, a unix socket (with file mode `mode`) and a TCP port, else
    None. Raises `ConfigError` if it cannot listen.
    """
    if fd is not None:
        return socket.socket(fileno=fd)
    if uds is not None:
        return _listen_unix(uds, mode)
    if port is None:
        return None
    # The protocol must be named: asyncio turns off Nagle's algorithm (40 ms per reply) only for sockets whose
    # protocol is IPPROTO_TCP.
    listener = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"The proxy cannot listen at {host}:{port}: {error}.") from error
    listener.listen(_BACKLOG)
    return listener


def address_of(listener: socket.socket) -> str:
    """`http://host:port` or `unix:/path`."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _listen_unix(path: Path, mode: int) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"The proxy cannot listen at {path}: {error}. A unix socket path has at most 107 bytes."
        ) from error
    os.chmod(path, mode)
    listener.listen(_BACKLOG)
    return listener
