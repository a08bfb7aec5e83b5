"""What a container uses, read from the kernel's own files: the control groups of its first process."""

import os
from pathlib import Path

from harnessgym.errors import SandboxError
from harnessgym.sandbox import Stats

_CGROUPS = Path("/sys/fs/cgroup")


class Meter:
    """Reads the control groups of a process of this machine, in either version. Processor time counts from
    here on.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._folders = _folders(pid)
        self._before_s = self._cpu_s() if self._folders else 0.0

    def read(self, workspace: int) -> Stats:
        """What is used at this moment; `workspace` is a descriptor of it. Raises SandboxError where it
        cannot be told.
        """
        if not self._folders:
            raise SandboxError(
                f"What a sandbox uses cannot be read: /proc/{self._pid}/cgroup leads to nothing in "
                f"{_CGROUPS}. The node must "
                "run on the engine's machine, outside of containers."
            )
        try:
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
        """A value from the first version's file of a controller, else from the second version's."""
        if controller in self._folders:
            return int((self._folders[controller] / first).read_text())
        return int((self._folders[""] / second).read_text())


def _folders(pid: int) -> dict[str, Path]:
    """The control group of each controller; "" is the second version's."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, Path] = {}
    for line in lines:
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
