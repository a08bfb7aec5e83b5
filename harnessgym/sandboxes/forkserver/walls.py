"""Isolates rollouts from each other: a user, mount, PID, IPC and network namespace each, and resource limits.

The order of the steps matters. Ids are mapped before anything is mounted, mounts are made private before
anything is covered, the loopback listener is opened before capabilities go, and capabilities and system calls
go last.
"""

import fcntl
import os
import resource
import socket
import struct

from . import kernel, landlock
from .wire import ForkOrder

WORKSPACE = "/workspace"
HOME = "/home/agent"
TEMPORARY = "/tmp"  # noqa: S108  # the rollout's own, empty file system
COVERED = (TEMPORARY, HOME, "/dev/shm")  # noqa: S108
"""Where each rollout gets a private, empty file system."""
_EVERYTHING = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWNET
)
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41


def leave_the_others() -> None:
    """Enters new namespaces (the PID namespace: its children), with the same user and group ids inside."""
    user = os.getuid()
    group = os.getgid()
    kernel.set_dumpable(True)  # or /proc/self belongs to root and the maps cannot be written
    kernel.unshare(_EVERYTHING)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def build(order: ForkOrder) -> socket.socket | None:
    """Sets up the mounts and network of a rollout. Called by its PID 1. Returns the relay's listener if the
    order has a port.
    """
    kernel.mount("", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    safe = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount(order.workspace, WORKSPACE, "", kernel.MS_BIND)
    exposed = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in order.exposed}
    for path in filter(os.path.exists, order.hidden):  # what the server does not see needs no cover
        if os.path.isdir(path):
            kernel.mount("tmpfs", path, "tmpfs", safe | kernel.MS_NOEXEC, "size=4k,mode=0555")
        else:
            kernel.mount("/dev/null", path, "", kernel.MS_BIND)
    for folder in COVERED:
        kernel.mount("tmpfs", folder, "tmpfs", safe, f"size={order.tmp_bytes},mode=1777,nr_inodes=64k")
    for path, descriptor in exposed.items():
        _expose(path, descriptor)
    for source, target in order.replaced.items():
        kernel.mount(source, target, "", kernel.MS_BIND)
    kernel.mount(
        "devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666"
    )
    _mount_proc()
    _raise_loopback()
    return _listen(order.port) if order.port else None


def _expose(path: str, descriptor: int) -> None:
    """Puts a folder or file back on top of a fresh, empty file system that covers it."""
    source = f"/proc/self/fd/{descriptor}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
    kernel.mount(source, path, "", kernel.MS_BIND | kernel.MS_REC)
    os.close(descriptor)


def _mount_proc() -> None:
    try:
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    except PermissionError:  # the outer /proc is partly covered: better none than the outer one
        kernel.mount("tmpfs", "/proc", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=4k,mode=0555")
        return
    _write("/proc/sys/user/max_user_namespaces", "0")


def _raise_loopback() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP_RUNNING))


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def set_limits(order: ForkOrder) -> None:
    """Limits of each process, except `processes`, which the kernel counts per user and namespace."""
    _limit(resource.RLIMIT_CORE, 0)
    for kind, value in (
        (resource.RLIMIT_AS, order.memory_bytes),
        (resource.RLIMIT_NPROC, order.processes if order.namespaces else 0),
        (resource.RLIMIT_FSIZE, order.file_bytes),
    ):
        if value:
            _limit(kind, value)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def lock(order: ForkOrder) -> None:
    """Drops capabilities and filters system calls, for good: the last step before foreign code runs."""
    kernel.forbid_new_privileges()
    if order.namespaces:
        kernel.drop_capabilities()
        if order.judges:
            landlock.forbid_writing_below("/proc")
            kernel.forbid_tracing()
        kernel.filter_system_calls()
    kernel.set_dumpable(True)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
