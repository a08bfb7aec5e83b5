"""What the processes below one process use, read from `/proc`."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Sums over processes."""

    memory_bytes: int = 0
    """Each page shared by several processes counts for each in proportion."""
    processes: int = 0
    cpu_s: float = 0.0
    """Processor time, that of collected children too."""

    def __add__(self, other: "ResourceUsage") -> "ResourceUsage":
        return ResourceUsage(
            self.memory_bytes + other.memory_bytes, self.processes + other.processes, self.cpu_s + other.cpu_s
        )


def usage_below(pid: int) -> ResourceUsage:
    """What all descendants of a process use; nothing when there is no such process. What ends meanwhile is
    left out.
    """
    total = ResourceUsage(cpu_s=_cpu_s(pid, of_children=True))
    for child in _children(pid):
        with contextlib.suppress(OSError):
            total += ResourceUsage(_memory(child), 1, _cpu_s(child, of_children=False))
        total += usage_below(child)
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def _memory(pid: int) -> int:
    """The proportional share, or where we may not ask for it, all that is resident."""
    with contextlib.suppress(PermissionError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def _cpu_s(pid: int, *, of_children: bool) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    user, system = fields[13:15] if of_children else fields[11:13]
    return (int(user) + int(system)) * _TICK_S
