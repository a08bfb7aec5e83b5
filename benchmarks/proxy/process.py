"""Child processes of the benchmark, and what /proc says of them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from benchmarks.proxy.client import Load, Result

_TICK = os.sysconf("SC_CLK_TCK")


class Child:
    """A server process, with all that it starts."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                argv,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def line(self, pattern: str) -> re.Match[str]:
        """Wait until it has said something that matches."""
        while self.process.poll() is None:
            found = re.search(pattern, self._log.read_text(errors="replace"), re.MULTILINE)
            if found:
                return found
            time.sleep(0.02)
        raise self._failure(f"ended without saying {pattern!r}")

    def await_port(self, port: int, timeout_s: float = 120.0) -> None:
        """Return when it listens."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and self.process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise self._failure(f"does not listen at port {port}")

    def _failure(self, what: str) -> RuntimeError:
        self.stop()
        end = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return RuntimeError(f"{self.process.args!r} {what}. The end of its log:\n{end}")

    def stop(self) -> None:
        """End it and what it started."""
        group = self.process.pid
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(group, number)
                self.process.wait(10.0)

    def cpu_s(self) -> float:
        """Processor seconds of it and its descendants so far."""
        return sum(_cpu_s(Path(f"/proc/{pid}/stat")) for pid in _family(self.process.pid))

    def threads_cpu_s(self) -> dict[str, float]:
        """Processor seconds of its first thread, which runs the event loop, and of the others together."""
        out: dict[str, float] = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            name = "event loop" if int(task.name) == self.process.pid else "other threads"
            out[name] = out.get(name, 0.0) + _cpu_s(task / "stat")
        return out

    def rss_mb(self) -> float:
        """Resident memory of it and its descendants, in MB (10^6 bytes)."""
        pages = sum(
            int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in _family(self.process.pid)
        )
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def run_client(load: Load) -> Result:
    """Run a load in a process of its own."""
    argv = [sys.executable, "-m", "benchmarks.proxy.client"]
    done = subprocess.run(argv, input=json.dumps(asdict(load)).encode(), stdout=subprocess.PIPE, check=True)
    return Result(**json.loads(done.stdout))


def free_port() -> int:
    """A TCP port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _family(pid: int) -> list[int]:
    out, known = [pid], {pid}
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    grown = True
    while grown:
        grown = False
        for child, parent in parents.items():
            if parent in known and child not in known:
                known.add(child)
                out.append(child)
                grown = True
    return out


def _cpu_s(path: Path) -> float:
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK
