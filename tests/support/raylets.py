"""A private Ray cluster on this machine: several raylets, each of which can be killed like a machine."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from harnessgym.process import ProcessId, identify

_START_S = 180
_SETTINGS = {
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
    "RAY_worker_niceness": "0",
}
"""Start workers only when they have work; notice a dead machine within seconds; run workers at the priority of
everything else, which they would wait for on a busy machine."""
_STORE_BYTES = 80_000_000
"""Size of the object store, which nothing here uses: the smallest that Ray accepts."""


def ray_available() -> str | None:
    """Why no cluster can run here; None if one can."""
    from importlib.util import find_spec

    return None if find_spec("ray") else "Ray is not installed: `pip install 'harnessgym-rl[ray]'`."


class Raylets:
    """A head and the machines that are added to it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hg-ray-", dir="/tmp"))  # short: unix sockets lie in it
        self.port = _free_port()
        self.machines: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: list[ProcessId] = []
        """What ran on machines that were killed."""

    @property
    def address(self) -> str:
        """The address of Ray's head."""
        return f"127.0.0.1:{self.port}"

    def add(self, name: str, **resources: float) -> None:
        """Start a machine with these resources and wait until it runs. The first one is the head."""
        role = ["--address", self.address]
        if not self.machines:
            role = ["--head", f"--port={self.port}", f"--temp-dir={self.folder}", "--include-dashboard=false"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *role, "--num-cpus=8"]
        command += [
            "--node-ip-address=127.0.0.1",
            f"--object-store-memory={_STORE_BYTES}",
            f"--resources={json.dumps(resources)}",
        ]
        command += ["--include-log-monitor=false", "--disable-usage-stats"]
        env = os.environ | _SETTINGS
        log = self.folder / f"{name}.log"
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)
        self.machines[name] = process
        deadline = time.monotonic() + _START_S
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

    def kill(self, name: str) -> list[int]:
        """Kill a machine: its raylet, and with it everything that ran there. Returns the pids of that."""
        process = self.machines.pop(name)
        below = _below(process.pid)
        self._killed += _identified(below)
        for pid in [pid for pid in below if b"/raylet/raylet" in Path(f"/proc/{pid}/cmdline").read_bytes()]:
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        return below

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a machine: to its raylet, and to what runs there."""
        for pid in [self.machines[name].pid, *_below(self.machines[name].pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        """Kill every machine and what Ray started there. An orderly shutdown takes half a minute."""
        known = [*self._killed, *_identified(p for m in self.machines.values() for p in _below(m.pid))]
        for process in self.machines.values():
            process.kill()
            process.wait()
        for each in known:  # of a machine that froze, what was stopped has not seen its end
            each.signal(signal.SIGKILL)
            for left in Path(tempfile.gettempdir()).glob(f"harnessgym-place-{each.pid}-{each.started}-*"):
                shutil.rmtree(left, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _below(pid: int) -> list[int]:
    children = _children(pid)
    return children + [lower for child in children for lower in _below(child)]


def _identified(pids: Iterable[int]) -> list[ProcessId]:
    return [known for pid in pids if (known := identify(pid)) is not None]


def _free_port() -> int:
    """A free port outside the range that Ray gives its workers."""
    while True:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
        if not 10_000 <= port < 20_000:
            return port
