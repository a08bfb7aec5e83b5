"""What a machine holds of one run at one moment, and what is left of it later.

Containers, networks, volumes, mounts, control groups, processes, temporary folders and files, sockets.
Everything has a key that is never used again, so that what two inventories share is the very same thing.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.sandbox.witness import Witness
from harnessgym.process import identify
from harnessgym.run_folder import RunFolder

KINDS = ("container", "network", "volume", "mount", "cgroup", "process", "folder", "socket")
_CGROUPS = Path("/sys/fs/cgroup")
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, order=True)
class Item:
    """One thing."""

    kind: str
    key: str
    what: str = field(default="", compare=False)
    """For people."""

    def __str__(self) -> str:
        return f"{self.kind} {self.key}" + (f" ({self.what})" if self.what else "")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run keeps its things: a run folder, and a folder that its processes have as `TMPDIR`, which
    is theirs alone.
    """

    run: RunFolder
    temporary: Path

    @property
    def marks(self) -> tuple[str, str]:
        """Paths that are in the command lines, environments or mounts of its processes."""
        return str(self.run.root), str(self.temporary)


@dataclass(frozen=True)
class Inventory:
    """What there is."""

    items: frozenset[Item]

    @classmethod
    def take(cls, place: Place, engine: Witness | None) -> "Inventory":
        """Looks now. `engine` is None where none is used. Needs root where other users' processes are to
        be seen.
        """
        sources: list[Iterator[Item]] = [
            _folders(place),
            _sockets(place),
            _processes(place, engine),
            _mounts(place, engine),
        ]
        if engine is not None:
            sources += [_containers(engine), _networks(engine), _volumes(engine), _cgroups(engine)]
        return cls(frozenset(item for source in sources for item in source))

    @cached_property
    def by_kind(self) -> dict[str, list[Item]]:
        """The items of each kind, sorted."""
        return {kind: sorted(item for item in self.items if item.kind == kind) for kind in KINDS}


def difference(before: Inventory, after: Inventory) -> list[Item]:
    """What came and stayed."""
    return sorted(after.items - before.items)


def lasting(suspects: Iterable[Item], look: Callable[[], Inventory], max_wait_s: float) -> list[Item]:
    """Those of `suspects` that are still there when `max_wait_s` have passed: dying takes a moment."""
    left, deadline = set(suspects), time.monotonic() + max_wait_s
    while left:
        left &= look().items
        if time.monotonic() > deadline:
            break
        time.sleep(_LOOK_S)
    return sorted(left)


def _containers(engine: Witness) -> Iterator[Item]:
    for each in engine.client.containers(all=True, filters={"label": engine.label}):
        engine.containers.add(each["Id"])
        yield Item("container", each["Id"], each["Status"])


def _networks(engine: Witness) -> Iterator[Item]:
    for each in engine.client.networks(filters={"label": engine.label}):
        yield Item("network", each["Id"], each["Name"])


def _volumes(engine: Witness) -> Iterator[Item]:
    labelled = engine.client.volumes(filters={"label": engine.label})["Volumes"] or []
    yield from (Item("volume", each["Name"]) for each in labelled)
    for each in engine.client.volumes()["Volumes"] or []:
        if each["Name"] in engine.volumes:
            yield Item("volume", each["Name"])


def _cgroups(engine: Witness) -> Iterator[Item]:
    found = {
        path.name.removeprefix("docker-").removesuffix(".scope")
        for pattern in (
            "docker/*",
            "*/docker/*",
            "system.slice/docker-*.scope",
            "*/system.slice/docker-*.scope",
        )
        for path in _CGROUPS.glob(pattern)
    }
    yield from (Item("cgroup", each) for each in found & engine.containers)


def _mounts(place: Place, engine: Witness | None) -> Iterator[Item]:
    for point in _mounted("self"):
        if point.startswith(tuple(f"{mark}/" for mark in place.marks)):
            yield Item("mount", point)
    for point in _mounted(str(engine.pid)) if engine is not None else ():
        owned = engine is not None and (
            point in engine.mounts or not engine.containers.isdisjoint(Path(point).parts)
        )
        if owned:
            yield Item("mount", point)


def _mounted(pid: str) -> list[str]:
    try:
        return [line.split(" ")[4] for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    except OSError:
        return []


def _processes(place: Place, engine: Witness | None) -> Iterator[Item]:
    marks = (*place.marks, *(engine.containers if engine is not None else ()))
    ours = re.compile(b"(?:" + b"|".join(re.escape(mark.encode()) for mark in marks) + rb")(?![\w.-])")
    own, here = _ancestors(), _namespace("self")
    for entry in Path("/proc").glob("[0-9]*"):
        found = identify(int(entry.name))
        if found is None or found.pid in own or not found.alive():
            continue
        command = _read(entry / "cmdline")
        told = command + _read(entry / "environ") + _read(entry / "cgroup") + _link(entry / "cwd")
        if _namespace(entry.name) != here:
            told += _read(entry / "mountinfo")
        if ours.search(told):
            yield Item(
                "process",
                f"{found.pid}@{found.started}",
                command.replace(b"\0", b" ").decode(errors="replace")[:160],
            )


def _ancestors() -> set[int]:
    """The looking process, and those that started it: their command lines may name the run."""
    pid, out = os.getpid(), set[int]()
    while pid > 0:
        out.add(pid)
        stat = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
        pid = int(stat[1]) if stat else 0
    return out


def _folders(place: Place) -> Iterator[Item]:
    """What lies in folders where nothing may stay, and files that were being replaced."""
    for folder in (place.temporary, place.run.workspaces):
        if folder.is_dir():
            yield from (Item("folder", str(each)) for each in folder.iterdir())
    for folder in (place.run.root, place.run.root / "services"):
        yield from (Item("folder", str(each)) for each in folder.glob(".*"))


def _sockets(place: Place) -> Iterator[Item]:
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if len(words) > 7 and words[7].startswith(tuple(f"{mark}/" for mark in place.marks)):
            yield Item("socket", words[6], words[7])


def _namespace(pid: str) -> bytes:
    return _link(Path(f"/proc/{pid}/ns/mnt"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _link(path: Path) -> bytes:
    try:
        return os.fsencode(os.readlink(path))
    except OSError:
        return b""
