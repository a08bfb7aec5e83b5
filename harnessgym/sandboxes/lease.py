"""A node's own folder, and the lock that says that the node lives: it is free the moment its process is dead.

Each node makes one folder in the place that it shares with others (`workspace_root`) and keeps it locked. Who
finds a folder that nobody holds may remove it, and whatever refers to it; no clock can be wrong about that.
"""

import fcntl
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harnessgym.sandboxes.workspace import Workspace

_LABEL = "harnessgym-node-"


@dataclass(frozen=True, slots=True)
class Lease:
    """A node's folder while it is locked."""

    folder: Path
    """Without links on the way, so that it has one name however its place was called."""
    descriptor: int

    def release(self) -> None:
        """Gives the lock up. Whoever does so removes the folder first."""
        os.close(self.descriptor)


def claim(root: Path) -> Lease:
    """Makes a folder for this node in `root` and locks it, after removing those of nodes that died. Raises
    OSError.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o711)
    root = root.resolve()
    gate = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)  # nobody looks between the making of a folder and its lock
        for folder in root.glob(f"{_LABEL}*"):
            _remove_if_abandoned(folder)
        folder = Path(tempfile.mkdtemp(prefix=f"{_LABEL}{os.getpid()}-", dir=root))
        folder.chmod(0o711)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(gate)
    return Lease(folder, descriptor)


def is_abandoned(folder: str) -> bool:
    """Whether nobody holds the lock on a node's folder, or it is gone. One that cannot be looked at is
    somebody's.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _remove_if_abandoned(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Workspace(folder, None, 0).remove()
    except OSError:  # a living node's, or another user's
        return
    finally:
        os.close(descriptor)
