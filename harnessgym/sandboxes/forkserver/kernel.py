"""Linux calls that Python's standard library lacks, through ctypes.

Each raises OSError with the call's name.
"""

import ctypes
import errno
import os
import platform
import struct

CLONE_NEWNS = 0x0002_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x2008_0522

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def syscall(number: int, *arguments: int | bytes | None) -> int:
    """Makes a system call that the C library has no function for. Returns its result, -1 for an error."""
    words = [ctypes.c_long(each) if isinstance(each, int) else ctypes.c_char_p(each) for each in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *words))


def checked_syscall(name: str, number: int, *arguments: int | bytes | None) -> int:
    """Makes a system call; raises OSError with `name` if it fails."""
    result = syscall(number, *arguments)
    if result < 0:
        _check(result, name)
    return result


def unshare(flags: int) -> None:
    """Leaves the namespaces named by `flags`."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mounts a file system. `options` are the file system's own options."""
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(_libc.mount(*arguments), f"mount {kind or source} on {target}")


def prctl(option: int, value: int, name: str) -> None:
    """Sets one attribute of this process."""
    arguments = (option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _check(_libc.prctl(*arguments), name)


def set_dumpable(dumpable: bool) -> None:
    """Sets whether this process may be traced. If not, its `/proc` entry belongs to root."""
    prctl(_PR_SET_DUMPABLE, int(dumpable), "PR_SET_DUMPABLE")


def become_subreaper() -> None:
    """Orphans among our descendants become our children, however often they fork or start sessions."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def forbid_new_privileges() -> None:
    """From now on set-user-id programs grant no rights to this process and its children."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


def drop_capabilities() -> None:
    """Empties every capability set and the bounding set, for this process and its children, for good."""
    last = int(_read_text("/proc/sys/kernel/cap_last_cap") or 63)
    for capability in range(last + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(capability), 0, 0, 0) != 0:
            break
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, struct.pack("=6I", *[0] * 6)), "capset")


def _read_text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_void_p))


_ARCHITECTURES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    # audit number, socket(2), and: add_key request_key keyctl io_uring_setup io_uring_enter io_uring_register
    # bpf
    # userfaultfd perf_event_open
    "x86_64": (0xC000_003E, 41, (248, 249, 250, 425, 426, 427, 321, 323, 298)),
    "aarch64": (0xC000_00B7, 198, (217, 218, 219, 425, 426, 427, 280, 282, 241)),
}
_TRACING: dict[str, tuple[int, ...]] = {
    # ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd perf_event_open userfaultfd
    "x86_64": (101, 310, 311, 312, 438, 298, 323),
    "aarch64": (117, 270, 271, 272, 438, 241, 282),
}
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: the ones a network namespace confines."""


def filter_system_calls() -> bool:
    """Installs a seccomp filter against ways around a network namespace and access to kernel key rings.

    It refuses vsock, io_uring and other socket families: a virtual machine's vsock reaches its host from any
    network namespace. Key rings are shared by user id. Returns False if this machine's architecture is
    unknown; the namespaces isolate all the same.
    """
    known = _ARCHITECTURES.get(platform.machine())
    if known is None:
        return False
    _install(_instructions(*known))
    return True


def forbid_tracing() -> bool:
    """Installs a seccomp filter against system calls that look into another process or change it.

    Returns False if this machine's architecture is unknown. To be called before `filter_system_calls`, which
    refuses other architectures' numbers; the kernel asks both filters.
    """
    denied = _TRACING.get(platform.machine())
    if denied is None:
        return False
    lines = [_op(_LOAD, 0)]
    for number in denied:
        lines += [_op(_EQUAL, number, 0, 1), _op(_GIVE, _REFUSE | errno.EPERM)]
    _install([*lines, _op(_GIVE, _ALLOW)])
    return True


def _install(instructions: list[bytes]) -> None:
    program = b"".join(instructions)
    buffer = ctypes.create_string_buffer(program, len(program))
    rules = _Filter(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    arguments = (
        ctypes.c_ulong(_SECCOMP_MODE_FILTER),
        ctypes.byref(rules),
        ctypes.c_ulong(0),
        ctypes.c_ulong(0),
    )
    _check(_libc.prctl(_PR_SET_SECCOMP, *arguments), "PR_SET_SECCOMP")


_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_GIVE = 0x06
_ALLOW = 0x7FFF_0000
_KILL = 0x8000_0000
_REFUSE = 0x0005_0000


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _instructions(architecture: int, socket_call: int, denied: tuple[int, ...]) -> list[bytes]:
    """Classic BPF over `struct seccomp_data` (number at 0, architecture at 4, first argument's low word at
    16).
    """
    lines = [_op(_LOAD, 4), _op(_EQUAL, architecture, 1, 0), _op(_GIVE, _KILL), _op(_LOAD, 0)]
    lines += [_op(_AT_LEAST, 0x4000_0000, 0, 1), _op(_GIVE, _REFUSE | errno.ENOSYS)]  # the x32 numbers
    for number in denied:
        lines += [_op(_EQUAL, number, 0, 1), _op(_GIVE, _REFUSE | errno.ENOSYS)]
    lines += [_op(_EQUAL, socket_call, 1, 0), _op(_GIVE, _ALLOW), _op(_LOAD, 16)]
    for family in _SOCKET_FAMILIES:
        lines += [_op(_EQUAL, family, 0, 1), _op(_GIVE, _ALLOW)]
    return [*lines, _op(_GIVE, _REFUSE | errno.EAFNOSUPPORT)]
