"""A private Docker engine: its own socket, data and log in a folder, ended when it is closed. Images stay for
the next one.

python -m benchmarks.sandbox.dockerd --folder ~/.cache/harnessgym/dockerd            # in the foreground
eval "$(python -m benchmarks.sandbox.dockerd --folder ... --detach)"                 # sets DOCKER_HOST
"""

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

CACHE = Path.home() / ".cache" / "harnessgym" / "dockerd"
"""Outside any checkout, so that images are built once."""
_START_S = 60.0
_STOP_S = 30.0
_PROGRAMS = ("dockerd", "containerd", "runc", "ip")
_LONGEST_SOCKET = 100


def dockerd_available() -> str | None:
    """Why there can be no private engine here; None if there can."""
    if os.geteuid() != 0:
        return "A private Docker engine needs root. Run as root, or point DOCKER_HOST at an engine that is there."
    missing = [name for name in _PROGRAMS if _program(name) is None]
    return (
        f"Not installed: {', '.join(missing)}. On Debian: apt-get install docker.io iproute2."
        if missing
        else None
    )


class Dockerd:
    """A running engine.

    ```python
    with Dockerd() as engine:
        client = docker.DockerClient(engine.host)
    ```
    """

    def __init__(self, folder: Path | None = None, *, network: bool = True) -> None:
        """Starts it, or ends the one that an earlier process left in `folder` and starts anew.

        Its bridge is its own. Without `network` it makes no packet rules, so containers reach nothing through
        that bridge; with them, it takes over the rules of another engine on this machine. Raises RuntimeError
        if it cannot be started.
        """
        if (problem := dockerd_available()) is not None:
            raise RuntimeError(problem)
        self.folder = (folder or CACHE).expanduser().resolve()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._network = network
        self._server: subprocess.Popen[bytes] | None = None
        self._run = self.folder / "run"
        self.bridge = f"hg{hashlib.blake2b(str(self.folder).encode(), digest_size=5).hexdigest()}"
        self.socket = self.folder / "docker.sock"
        if len(str(self.socket)) > _LONGEST_SOCKET:
            raise RuntimeError(f"{self.folder} is too long a path for a unix socket in it.")
        self.start()

    @property
    def host(self) -> str:
        """What `DOCKER_HOST` must be."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int | None:
        """Of the engine that serves this folder, whoever started it."""
        return _ours(self.folder)

    def start(self) -> None:
        """Start the engine and wait until it answers."""
        self.stop()
        command = [str(_program("dockerd")), f"--host={self.host}", f"--data-root={self.folder / 'data'}"]
        command += [
            f"--exec-root={self._run}",
            f"--pidfile={_pidfile(self.folder)}",
            "--storage-driver=overlay2",
        ]
        command += [
            f"--bridge={self.bridge}",
            *([] if self._network else ["--iptables=false", "--ip-masq=false"]),
        ]
        self._ip("link", "add", self.bridge, "type", "bridge")
        with (self.folder / "log").open("ab") as log:
            began = log.tell()
            server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        self._server = server
        deadline = time.monotonic() + _START_S
        while not _answers(self.socket):
            if server.poll() is not None or time.monotonic() > deadline:
                said = (self.folder / "log").read_bytes()[began:][-3_000:].decode(errors="replace")
                self.stop()
                raise RuntimeError(f"dockerd did not start. Its last words:\n{said}")
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the engine and its containers; SIGKILL ends it as a crash does, and leaves the containers'
        processes.
        """
        pid = self.pid
        if pid is not None:
            os.kill(pid, how)
            deadline = time.monotonic() + _STOP_S
            while _alive(pid) and time.monotonic() < deadline:
                if self._server is not None and self._server.pid == pid:
                    self._server.poll()
                time.sleep(0.05)
            if _alive(pid):
                os.kill(pid, signal.SIGKILL)
        if self._server is not None:
            self._server.wait(_STOP_S)
        if how != signal.SIGKILL:
            self._end_leftovers()

    def _end_leftovers(self) -> None:
        """What an engine that was killed left: containers' processes, their shims, its mounts."""
        deadline = time.monotonic() + _STOP_S
        while (left := _processes(self.folder)) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in sorted(
            (mount for mount in mounts if mount.startswith(str(self.folder) + "/")), reverse=True
        ):
            subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
        self._ip("link", "delete", self.bridge)
        shutil.rmtree(self._run, ignore_errors=True)
        for path in (_pidfile(self.folder), self.socket):
            path.unlink(missing_ok=True)

    def _ip(self, *words: str) -> None:
        """Changes this engine's bridge; that it is there already, or gone, is no error."""
        subprocess.run([str(_program("ip")), *words], capture_output=True, check=False)

    def close(self) -> None:
        """End the engine; its images stay."""
        self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _program(name: str) -> str | None:
    return shutil.which(
        name, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin"
    )


def _pidfile(folder: Path) -> Path:
    return folder / "docker.pid"


def _ours(folder: Path) -> int | None:
    """The process that the pidfile names, if it is an engine of this folder: pids are used again."""
    try:
        pid = int(_pidfile(folder).read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, ValueError):
        return None
    return pid if f"--data-root={folder / 'data'}" in command and _alive(pid) else None


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _processes(folder: Path) -> list[int]:
    """Of containerd and shims whose command line names the folder of an engine, and the processes of its
    containers.
    """
    marks = (str(folder / "run"), str(folder / "data"))
    containers = [path.name for path in (folder / "data" / "containers").glob("*")]
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            groups = (path / "cgroup").read_text()
        except OSError:
            continue
        named = any(word == mark or word.startswith(f"{mark}/") for word in words[1:] for mark in marks)
        runtime = named and Path(words[0]).name.startswith("containerd")
        if (runtime or any(name in groups for name in containers)) and _alive(int(path.name)):
            found.append(int(path.name))
    return found


def _answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(path))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b"200 OK" in connection.recv(200)
    except OSError:
        return False


def main() -> None:
    """Run one in the foreground until it is told to end, or leave it running."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sandbox.dockerd", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--folder", type=Path, default=CACHE, help=f"where it keeps everything; default {CACHE}"
    )
    parser.add_argument(
        "--detach", action="store_true", help="leave it running, and print the shell command that names it"
    )
    parser.add_argument(
        "--reuse", action="store_true", help="with --detach: if one runs in the folder, leave it and name it"
    )
    parser.add_argument("--stop", action="store_true", help="end the one that runs in the folder")
    parser.add_argument(
        "--no-network", action="store_true", help="make no packet rules: leave those of another engine alone"
    )
    told = parser.parse_args()
    folder = told.folder.expanduser().resolve()
    if told.reuse and _ours(folder) is not None and _answers(folder / "docker.sock"):
        print(f"export DOCKER_HOST=unix://{folder / 'docker.sock'}")
        return
    try:
        engine = Dockerd(folder, network=not told.no_network)
    except RuntimeError as error:
        sys.exit(str(error))
    if told.stop:
        engine.close()
        return
    print(f"export DOCKER_HOST={engine.host}", flush=True)
    if told.detach:
        return
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: sys.exit(0))
    with engine:
        while engine.pid is not None:
            time.sleep(0.5)


if __name__ == "__main__":
    main()
