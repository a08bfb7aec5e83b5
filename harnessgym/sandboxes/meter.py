"""Measures what a container uses, from the control groups of its first process."""

import os
from pathlib import Path

from harnessgym.errors import SandboxError
from harnessgym.sandbox import Stats

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
                f"{_CGROUPS}. The node must "
                "run on the engine's machine, outside of containers."
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
    found: dict[str, Path] = {}
    for line in lines:
        # Controllers may be mounted together ("cpu,cpuacct") or alone, and v2 beside v1 at "unified".
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            for folder in (_CGROUPS / names, _CGROUPS / name, _CGROUPS / "unified"):
                if (folder / path.lstrip("/")).is_dir():
                    found[name] = folder / path.lstrip("/")
                    break
    unified = found.get("")
    if "memory" not in found and (unified is None or not (unified / "memory.current").exists()):
        return {}
    return found
