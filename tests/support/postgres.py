"""A private PostgreSQL server: a folder of its own under /tmp, a unix socket there, removed with the
server.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

try:
    import psycopg
except ImportError:
    psycopg = None  # type: ignore[assignment]
from sqlalchemy.engine import make_url

_USERS = ("postgres", "nobody")
"""PostgreSQL refuses to run as root; one of these users runs it then."""
_USER = "harnessgym"


def binaries() -> Path | None:
    """The folder of the newest installed PostgreSQL; None if there is none."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    on_path = shutil.which("postgres")
    folders += [Path(on_path).resolve().parent] if on_path else []
    return max(folders, key=lambda path: [int(part) for part in path.parts if part.isdigit()], default=None)


def postgres_available() -> str | None:
    """Why no server can run here; None if one can."""
    if binaries() is None:
        return (
            "PostgreSQL is not installed: no folder /usr/lib/postgresql/*/bin and no `postgres` on the PATH."
        )
    return "psycopg is not installed: `pip install 'harnessgym-rl[postgres]'`." if psycopg is None else None


class PostgresServer:
    """A running server.

    ```python
    with PostgresServer() as postgres:
        store = TraceStore.create(postgres.create_database())
    ```
    """

    def __init__(self, *, durable: bool = False) -> None:
        """Without `durable` it never waits for the disk: a commit survives any kill, but not a power loss."""
        folder = binaries()
        if folder is None:
            raise RuntimeError(postgres_available())
        self._binaries = folder
        self._durable = durable
        self._databases = 0
        self.folder = Path(tempfile.mkdtemp(prefix="harnessgym-postgres-"))
        self._process_options: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:
            user = next(user for user in pwd.getpwall() if user.pw_name in _USERS)
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._process_options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._server: subprocess.Popen[bytes] | None = None
        try:
            initdb = [
                str(folder / "initdb"),
                "-D",
                str(self.folder / "data"),
                "-U",
                _USER,
                "-A",
                "trust",
                "-E",
                "UTF8",
            ]
            subprocess.run(
                [*initdb, "--locale=C", "--no-sync"], check=True, capture_output=True, **self._process_options
            )
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = ["listen_addresses=", f"unix_socket_directories={self.folder}", "max_connections=200"]
        options += [] if self._durable else ["fsync=off", "full_page_writes=off"]
        command = [
            str(self._binaries / "postgres"),
            "-D",
            str(self.folder / "data"),
            *(f"--{option}" for option in options),
        ]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, **self._process_options)
        deadline = time.monotonic() + 60
        while True:
            try:
                self._run("SELECT 1")
            except psycopg.OperationalError:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-2000:]}"
                    ) from None
                time.sleep(0.05)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the server. SIGINT closes its connections first; SIGQUIT is a crash."""
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(how)
            self._server.wait(60)

    def create_database(self, template: str | None = None) -> str:
        """Create a database, empty or as a copy of another one that has no connections. Returns its URL."""
        self._databases += 1
        name = f"traces_{self._databases}"
        self._run(f"CREATE DATABASE {name}" + (f" TEMPLATE {_name(template)}" if template else ""))
        return self.url(name)

    def url(self, database: str) -> str:
        """A database's URL."""
        return f"postgresql+psycopg:///{database}?host={self.folder}&user={_USER}"

    def drop_database(self, url: str) -> None:
        """Remove a database and close its connections."""
        self._run(f"DROP DATABASE IF EXISTS {_name(url)} WITH (FORCE)")

    def close(self) -> None:
        """End the server and remove its folder."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, sql: str) -> None:
        with psycopg.connect(host=str(self.folder), user=_USER, dbname="postgres", autocommit=True) as conn:
            conn.execute(sql)


def _name(url: str) -> str:
    return str(make_url(url).database)
