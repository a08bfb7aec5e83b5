"""A harness that tries to get out. Runs inside a sandbox; prints what it managed as JSON. Imports nothing
of ours.
"""

import ctypes
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

ME, OTHER, HOST_PORT, HOST_ROOT, PROXY_SOCKET = sys.argv[1:]
KEY = re.compile(rb"KEY-[0-9a-f]{32}")
MINE = os.environ["OPENAI_API_KEY"].encode()
URL = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
libc = ctypes.CDLL(None, use_errno=True)
found = {}


def barrier():
    urllib.request.urlopen(f"{URL}/barrier/2").read()


def succeeds(call):
    try:
        call()
    except OSError:
        return False
    return True


def keys_in_memory():
    """Keys anywhere in this process: what the fork inherited included."""
    keys = set()
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if "r" not in rights or "[v" in line:
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            try:
                memory.seek(start)
                keys |= set(KEY.findall(memory.read(end - start)))
            except (OSError, OverflowError):
                continue
    return sorted(key.decode() for key in keys - {MINE})


def keys_in_proc():
    """Keys in what /proc shows of every process, and what of init's could be opened at all."""
    keys, pids = set(), [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for pid in pids:
        for name in ("environ", "cmdline", "maps", "mem"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    if pid == 1 and name in ("environ", "mem"):
                        found.setdefault("opened", []).append(file.name)
                    keys |= set(KEY.findall(file.read(1 << 20)))
            except OSError:
                continue
    for name in ("fd", "root", "cwd"):
        if succeeds(lambda name=name: os.listdir(f"/proc/1/{name}")):
            found.setdefault("opened", []).append(name)
    found["pids"] = sorted(set(pids) - {1, os.getpid()})
    return sorted(key.decode() for key in keys - {MINE})


def files_of_the_other():
    names = []
    for top in ("/", HOST_ROOT):
        for folder, folders, files in os.walk(top):
            if folder in ("/proc", "/usr", "/sys", sys.prefix, sys.base_prefix):
                folders.clear()
            names += [os.path.join(folder, name) for name in files if name == f"secret-{OTHER}"]
    return names


def connects(address, family=socket.AF_INET):
    with socket.socket(family) as probe:
        probe.settimeout(1)
        return (
            probe.connect_ex(address) == 0 and probe.getsockname() != probe.getpeername()
        )  # not just itself


def open_ports():
    """Every port of the loopback device that answers. One socket serves until a port does not refuse it."""
    ports = []
    probe = socket.socket()
    for port in range(1, 65536):
        probe.settimeout(1)
        error = probe.connect_ex(("127.0.0.1", port))
        if error == errno.ECONNABORTED:  # of the port that refused before: this one was not asked
            error = probe.connect_ex(("127.0.0.1", port))
        if error != errno.ECONNREFUSED:
            if connects(("127.0.0.1", port)):
                ports.append(port)
            probe.close()
            probe = socket.socket()
    probe.close()
    return ports


def network():
    outside = [
        ("192.0.2.1", 80),
        ("169.254.169.254", 80),
        ("8.8.8.8", 53),
        ("127.0.0.1", int(HOST_PORT)),
        ("10.0.0.1", 22),
    ]
    reached = [address for address in outside if connects(address)]
    for family, address in (
        (socket.AF_INET6, ("::1", int(HOST_PORT))),
        (socket.AF_UNIX, PROXY_SOCKET),
        (socket.AF_UNIX, f"\0{OTHER}"),
    ):
        if succeeds(lambda family=family, address=address: socket.socket(family).connect(address)):
            reached.append(address)
    families = [
        number
        for number in range(46)
        if succeeds(lambda number=number: socket.socket(number, socket.SOCK_STREAM).close())
    ]
    interfaces = [name for _, name in socket.if_nameindex()]
    return {"open_ports": open_ports(), "reached": reached, "families": families, "interfaces": interfaces}


def writable():
    places = [
        "/",
        "/usr",
        "/etc",
        "/run",
        "/run/harnessgym",
        "/bin",
        "/lib",
        "/home",
        "/dev",
        "/proc",
        "/proc/sys/kernel",
        sys.prefix,
    ]
    program = os.path.dirname(sys.argv[0])
    places += (
        [] if program.startswith("/tmp/") else [program]
    )  # below /tmp it hangs in this rollout's own scratch folder
    places += [
        sys.base_prefix,
        os.path.dirname(os.__file__),
        HOST_ROOT,
        "/var",
        "/sys",
        "/root",
        "/srv",
    ]
    inside = [place for place in places if succeeds(lambda place=place: open(f"{place}/x-{ME}", "w").close())]
    for path in (
        sys.argv[0],
        "/etc/passwd",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
    ):
        if succeeds(lambda path=path: open(path, "a").close()):
            inside += [path]
    return inside


def calls():
    """Privileged calls that went through."""
    done = []
    attempts = {
        "unshare user": lambda: libc.unshare(0x10000000),
        "unshare mount": lambda: libc.unshare(0x20000),
        "umount cover": lambda: libc.umount2(b"/run/harnessgym", 2),
        "umount tmp": lambda: libc.umount2(b"/tmp", 2),
        "mount": lambda: libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b""),
        "chroot": lambda: libc.chroot(b"/tmp"),
        "setuid": lambda: libc.setuid(0),
        "sethostname": lambda: libc.sethostname(b"x", 1),
        "ptrace init": lambda: libc.ptrace(16, 1, 0, 0),
        "keyctl": lambda: libc.syscall({"x86_64": 250, "aarch64": 219}[os.uname().machine], 0, -3, 1),
        "io_uring": lambda: libc.syscall(425, 8, ctypes.create_string_buffer(120)),
        "raise nproc": _raise_nproc,
    }
    for name, attempt in attempts.items():
        if os.fork() == 0:
            os._exit(0 if attempt() >= 0 else 1)
        if os.waitstatus_to_exitcode(os.wait()[1]) == 0:
            done.append(name)
    return done


def _raise_nproc():
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_NPROC, (100_000, 100_000))
    except (ValueError, OSError):
        return -1
    return 0


def kill_everyone():
    """Signals every pid; if init or a sibling were among them, this rollout or the other would not finish."""
    hit = []
    for pid in [1, *range(2, 70_000)]:
        if pid == os.getpid():
            continue
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
        hit.append(pid)
    return hit


for place in ("/workspace", "/tmp", "/dev/shm", os.environ["HOME"]):
    Path(f"{place}/secret-{ME}").write_bytes(MINE)
listener = socket.create_server(("127.0.0.1", 0))
abstract = socket.socket(socket.AF_UNIX)
abstract.bind(f"\0{ME}")
abstract.listen()
segment = libc.shmget(0x1234, 64, 0o1666)
children = subprocess.Popen(["sleep", "60"], env={"CHILD": MINE.decode()})
barrier()
found["proc_keys"] = keys_in_proc()
found["memory_keys"] = keys_in_memory()
found["files"] = files_of_the_other()
found["network"] = network()
found["network"]["open_ports"].remove(listener.getsockname()[1])
found["foreign_segment"] = libc.shmget(0x1234, 64, 0o1666) != segment
found["writable"] = writable()
found["calls"] = calls()
found["ids"] = [os.getuid(), os.getgid(), os.getgroups()]
found["etc_shadow"] = succeeds(lambda: open("/etc/shadow").close())
found["devices"] = [
    name for name in os.listdir("/dev") if name.startswith(("sd", "vd", "mem", "kvm", "fuse", "mapper"))
]
found["child"] = children.pid
barrier()
found["killed"] = kill_everyone()
barrier()
print(json.dumps(found))
