"""Memory and CPU time: of a process's descendants from `/proc`, of a container from its control groups."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from harnessgym.errors import SandboxError
from harnessgym.sandbox import Stats

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Sums over processes."""

    memory_bytes: int = 0
    """Proportional set size: each process counts its share of a shared page."""
    processes: int = 0
    cpu_s: float = 0.0
    """CPU seconds, including those of children that have ended."""

    def __add__(self, other: "ResourceUsage") -> "ResourceUsage":
        return ResourceUsage(
            self.memory_bytes + other.memory_bytes, self.processes + other.processes, self.cpu_s + other.cpu_s
        )


def usage_below(pid: int) -> ResourceUsage:
    """Sums over all descendants of a process; zero if it does not exist. Skips those that end meanwhile."""
    # The time of ended children is kept by their parent. A child's own time is added here and that of its
    # ended children by the recursion, so nothing counts twice.
    total = ResourceUsage(cpu_s=_cpu_s(pid, of_children=True))
    for child in _children(pid):
        with contextlib.suppress(OSError):
            total += ResourceUsage(_memory(child), 1, _cpu_s(child, of_children=False))
        total += usage_below(child)
    return total


def _children(pid: int) -> list[int]:
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            pids += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return pids


def _memory(pid: int) -> int:
    """The proportional set size, or the resident set size if we may not read that."""
    with contextlib.suppress(PermissionError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def _cpu_s(pid: int, *, of_children: bool) -> float:
    try:
        # The program's name stands in parentheses and may itself hold spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    user, system = fields[13:15] if of_children else fields[11:13]
    return (int(user) + int(system)) * _TICK_S


_CGROUPS = Path("/sys/fs/cgroup")


class Meter:
    """Reads a process's control groups (v1 or v2). CPU time counts from when the meter is made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._folders = _folders(pid)
        self._before_s = self._cpu_s() if self._folders else 0.0

    def read(self, workspace: int) -> Stats:
        """The current use; `workspace` is a descriptor of it. Raises SandboxError if it cannot be read."""
        if not self._folders:
            raise SandboxError(
                f"What a sandbox uses cannot be read: /proc/{self._pid}/cgroup leads to nothing in "
                f"{_CGROUPS}. The node must run on the engine's machine, outside of containers."
            )
        try:
            # The workspace is a tmpfs of its own, so the file system's use is the workspace's size. One
            # process is the agent.
            used = os.fstatvfs(workspace)
            return Stats(
                memory_bytes=self._number("memory", "memory.usage_in_bytes", "memory.current"),
                processes=self._number("pids", "pids.current", "pids.current") - 1,
                cpu_s=self._cpu_s() - self._before_s,
                disk_bytes=(used.f_blocks - used.f_bfree) * used.f_frsize,
            )
        except OSError as error:
            raise SandboxError(
                f"The sandbox is gone: {error.strerror} when its use was read. Open a new one."
            ) from error

    def _cpu_s(self) -> float:
        if "cpuacct" in self._folders:
            return self._number("cpuacct", "cpuacct.usage", "") / 1e9
        for line in (self._folders[""] / "cpu.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "usage_usec":
                return int(value) / 1e6
        return 0.0

    def _number(self, controller: str, first: str, second: str) -> int:
        """Reads the file `first` of a v1 controller, else the file `second` of cgroup v2."""
        if controller in self._folders:
            return int((self._folders[controller] / first).read_text())
        return int((self._folders[""] / second).read_text())


def _folders(pid: int) -> dict[str, Path]:
    """The folder of each controller's control group; "" is that of cgroup v2. Empty if none is visible."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return {}
    folders: dict[str, Path] = {}
    for line in lines:
        # Controllers may be mounted together ("cpu,cpuacct") or alone, and v2 beside v1 at "unified".
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            for folder in (_CGROUPS / names, _CGROUPS / name, _CGROUPS / "unified"):
                if (folder / path.lstrip("/")).is_dir():
                    folders[name] = folder / path.lstrip("/")
                    break
    unified = folders.get("")
    if "memory" not in folders and (unified is None or not (unified / "memory.current").exists()):
        return {}
    return folders
