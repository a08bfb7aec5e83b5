"""Memory and CPU time of a process's descendants, read from `/proc`."""

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
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


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
