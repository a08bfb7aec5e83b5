"""The listening sockets of a run, held by the supervisor: connections queue while a process restarts."""

import contextlib
import json
import secrets
import shutil
import socket
import tempfile
from pathlib import Path

from harnessgym.errors import ConfigError
from harnessgym.run_folder import write_json

_BACKLOG = 512
_PREFIX = "harnessgym-run-"


class Sockets:
    """The proxy's three listeners and one per engine.

    The paths of Unix sockets are limited in length, so they live in a temporary folder with a short name. The
    file `record` names that folder, so that the next supervisor removes it if this one is killed.
    """

    def __init__(self, engines: int, record: Path) -> None:
        self._record = record
        _remove_leftover(record)
        self.folder = Path(tempfile.gettempdir()) / f"{_PREFIX}{secrets.token_hex(4)}"
        write_json(record, str(self.folder))  # before there is something to forget
        self.folder.mkdir(mode=0o700)
        # Sandboxes under other users must reach the proxy's socket, but neither list the folder nor reach the
        # control socket, which only the owner may open.
        self.proxy_folder = self.folder / "proxy"
        self.proxy_folder.mkdir()
        self.proxy_folder.chmod(0o755)
        self.folder.chmod(0o711)
        self.tcp = _tcp()
        self.unix = _unix(self.proxy_folder / "proxy.sock", 0o666)
        self.control = _unix(self.folder / "control.sock", 0o600)
        self.engines = [_tcp() for _ in range(engines)]

    @property
    def control_url(self) -> str:
        """URL of the control API."""
        return f"unix:{self.folder / 'control.sock'}"

    @property
    def proxy_url(self) -> str:
        """URL of the proxy for harnesses that share this machine's network."""
        return url_of(self.tcp)

    def close(self) -> None:
        """Close everything and remove the folder."""
        for item in (self.tcp, self.unix, self.control, *self.engines):
            with contextlib.suppress(OSError):
                item.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._record.unlink(missing_ok=True)


def url_of(listener: socket.socket) -> str:
    """The URL of a listening TCP socket."""
    host, port = listener.getsockname()
    return f"http://{host}:{port}"


def _remove_leftover(record: Path) -> None:
    """Remove the folder of a killed supervisor, and nothing that does not look like one."""
    try:
        folder = Path(json.loads(record.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return
    if (
        folder.parent != Path(tempfile.gettempdir())
        or not folder.name.startswith(_PREFIX)
        or not folder.is_dir()
    ):
        return
    if (folder / "proxy").is_dir() or not any(folder.iterdir()):
        shutil.rmtree(folder, ignore_errors=True)


def _tcp() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", 0))
    except OSError as error:
        raise ConfigError(
            f"No free port on 127.0.0.1: {error}. End what holds them and start again."
        ) from None
    listener.listen(_BACKLOG)
    return listener


def _unix(path: Path, mode: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(mode)
    listener.listen(_BACKLOG)
    return listener
