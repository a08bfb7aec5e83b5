"""A node's own folder and its lock, which the kernel frees the moment the node's process is dead.

Each node makes one folder in `workspace_root`, which nodes may share, and keeps it locked. Any node may
remove an unlocked folder and whatever belongs to it. A lock needs no clock, so no clock can be wrong.
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
    """Resolved path without links, so that every spelling of `workspace_root` gives the same name."""
    descriptor: int

    def release(self) -> None:
        """Releases the lock. Remove the folder first."""
        os.close(self.descriptor)


def claim(root: Path) -> Lease:
    """Removes the folders of dead nodes in `root`, then makes and locks one for this node. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True, mode=0o711)
    root = root.resolve()
    gate = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Without this lock, another node could remove our new folder before it is locked.
        fcntl.flock(gate, fcntl.LOCK_EX)
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
    """Whether a node's folder is gone or unlocked. A folder that cannot be opened counts as in use."""
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
    # The folder belongs to a living node or to another user.
    except OSError:
        return
    finally:
        os.close(descriptor)
