"""Decides when a node takes no more work: admission by memory and disk, and a circuit breaker.

A sandbox is opened only while this machine has room for it. The limits of tasks are ceilings that few
rollouts reach, so they are not added up. What counts is what is free at the moment. With no sandbox open
there is nothing to wait for: one is then admitted unless the machine is nearly full.

The breaker stops a node after too many infrastructure errors or dropped groups in a row.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from harnessgym.errors import SandboxError
from harnessgym.outcome.failure import Cause, RolloutFailed
from harnessgym.run_config.run import NodeSection
from harnessgym.store.rollouts import RolloutOutcome, RolloutRow

_LOG = logging.getLogger("harnessgym.node")
_MIB = 1 << 20
_LEAST_MEMORY = 64 * _MIB
_LEAST_DISK = 1 * _MIB
"""Below these not even a single sandbox can run."""
_LARGEST_RESERVE = 0.1
"""Largest part of a disk to reserve, so that a reserve meant for a large disk does not block a small one."""
_LOOK_S = 0.25
_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


@dataclass(frozen=True, slots=True)
class Room:
    """Free memory and disk space, in bytes."""

    memory: int
    disk: int
    disk_size: int
    """Size of the whole disk."""


Look = Callable[[Path], Room]


@dataclass(frozen=True, slots=True)
class Shortage:
    """The resource that is short, and how much of it one more sandbox needs."""

    cause: Cause
    text: str


def room_of(folder: Path) -> Room:
    """Memory free for new processes, within this process's cgroup too, and space on the disk of `folder`."""
    import psutil

    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = [psutil.virtual_memory().available]
    for limit, usage in _CGROUP_FILES:
        try:
            most, used = (int((_CGROUP / name).read_text()) for name in (limit, usage))
        except (OSError, ValueError):  # another version of cgroups, or no limit ("max")
            continue
        free.append(max(0, most - used))
    disk = psutil.disk_usage(str(there))
    return Room(min(free), disk.free, disk.total)


def shortage(room: Room, memory_mb: int, options: NodeSection, opened: int) -> Shortage | None:
    """What is short for one more sandbox of `memory_mb` beside `opened` ones; None if it fits."""
    if opened:
        memory = max(options.memory_reserve_mb, int(options.memory_share * memory_mb)) * _MIB
        disk = max(_LEAST_DISK, min(options.disk_reserve_mb * _MIB, int(_LARGEST_RESERVE * room.disk_size)))
    else:
        memory = _LEAST_MEMORY
        disk = _LEAST_DISK
    if room.memory < memory:
        return Shortage(
            Cause.HOST_REFUSED, f"{memory // _MIB} MiB of memory ({room.memory // _MIB} MiB are free)"
        )
    if room.disk < disk:
        return Shortage(
            Cause.HOST_DISK_FULL, f"{disk // _MIB} MiB of disk ({room.disk // _MIB} MiB are free)"
        )
    return None


class Pressure:
    """Admits new sandboxes while this machine has room.

    ```python
    async with pressure.admitted(task.limits.memory_mb, "rollout 3f"):
        async with backend.open(task.limits) as sandbox:
            ...
    ```
    """

    def __init__(
        self, folder: Path, options: NodeSection, look: Look = room_of, max_wait_s: float = 30.0
    ) -> None:
        """With no other sandbox open, an admission fails after `max_wait_s` seconds on a full machine."""
        self._folder = folder
        self._options = options
        self._look = look
        self._max_wait_s = max_wait_s
        self.opened = 0
        """Sandboxes that were admitted and are still open."""
        self._told = False

    async def tight(self) -> bool:
        """Whether no more rollouts should be claimed, because the running ones need what is left."""
        return self.opened > 0 and await self._missing(0) is not None

    @asynccontextmanager
    async def admitted(self, memory_mb: int, who: str) -> AsyncIterator[None]:
        """Wait until there is room, then count as open. Raises `RolloutFailed` when the machine is full."""
        began = time.monotonic()
        while (missing := await self._missing(memory_mb)) is not None:
            if not self.opened and time.monotonic() - began >= self._max_wait_s:
                raise RolloutFailed(
                    missing.cause,
                    f"This machine is full: {who} needs {missing.text}, and nothing of this node runs that "
                    "could end and give some back. End other programs or free space, then run the same "
                    "command again.",
                )
            if not self._told:
                self._told = True
                _LOG.warning(
                    "%s waits for %s; %d sandboxes are open. Others wait behind it.",
                    who,
                    missing.text,
                    self.opened,
                )
            await asyncio.sleep(_LOOK_S)
        if self._told:
            self._told = False
            _LOG.info("There is room again after %.1f s: %s goes on.", time.monotonic() - began, who)
        self.opened += 1
        try:
            yield
        finally:
            self.opened -= 1

    async def _missing(self, memory_mb: int) -> Shortage | None:
        """See `shortage`. Runs in a thread, because a network disk can take long to answer."""
        room = await anyio.to_thread.run_sync(self._look, self._folder)
        return shortage(room, memory_mb, self._options, self.opened)


_REMEDY = "Fix this and start the run again; it resumes."


class CircuitBreaker:
    """Counts consecutive failures. `limit` bounds the failed rollouts and the dropped groups alike."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.failures = 0
        self._last = ""
        self._seen: tuple[int, int] | None = None
        """Useful and dropped groups, as counted when the number of useful ones last rose."""

    def succeeded(self) -> None:
        """Note that a rollout got a verdict."""
        self.failures = 0

    def failed(self, row: RolloutRow, outcome: RolloutOutcome) -> None:
        """Note an infrastructure error. Raises `SandboxError` at the `limit`th in a row."""
        self.failures += 1
        self._last = f"of harness {row.harness!r}: {outcome.cause or outcome.stop_reason}: {outcome.detail}"
        if self.failures >= self.limit:
            raise SandboxError(
                f"{self.failures} rollouts in a row failed for reasons that are not the policy's; the last, "
                f"{self._last}\n{_REMEDY}"
            )

    def groups(self, states: Mapping[str, int]) -> None:
        """Note the training groups by state; `dropped` leaves out those that the trainer gave up.

        Raises `SandboxError` if `limit` groups were dropped since one last completed.
        """
        useful = states.get("complete", 0) + states.get("consumed", 0)
        dropped = states.get("dropped", 0)
        if self._seen is None or useful > self._seen[0]:
            self._seen = useful, dropped
        elif dropped - self._seen[1] >= self.limit:
            # The rollouts of these groups may all have failed on other nodes.
            last = f"The last failure, {self._last}" if self._last else "This node saw none of the failures."
            raise SandboxError(
                f"{dropped - self._seen[1]} groups in a row were dropped, because too few rollouts of each "
                f"had a verdict: the trainer gets nothing. {last}\n{_REMEDY}"
            )
