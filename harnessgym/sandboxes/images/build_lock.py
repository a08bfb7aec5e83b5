"""Locks that let one process on a machine build a content at a time, and marks of when each was last used."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.1
_SAY_S = 5.0


def folder() -> Path:
    """The folder with this user's locks and marks."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harnessgym" / "images"
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextmanager
def alone(content: str, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the content's lock. While it waits for another process, it says so every few seconds.

    The kernel releases the lock of a killed process.
    """
    # All contents share 256 lock files: removing a lock file would race with a process that opens it.
    lock = os.open(folder() / f"{content[:2]}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    began = reported_at = time.monotonic()
    try:
        while not _try(lock):
            if (now := time.monotonic()) - reported_at > _SAY_S:
                reported_at = now
                say(f"another process builds it; waited {now - began:.0f} s")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(lock)


@contextmanager
def idle(content: str) -> Iterator[bool]:
    """Tries to lock the content without waiting. Yields whether it did; the lock is held meanwhile."""
    lock = os.open(folder() / f"{content[:2]}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        yield _try(lock)
    finally:
        os.close(lock)


@contextmanager
def private(content: str) -> Iterator[Path]:
    """Yields an empty folder that only this user can read, and removes it afterwards.

    Removes one that a killed builder left first. Call it with the content's lock held.
    """
    path = folder() / f"{content}.lent"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def abandoned() -> list[str]:
    """Contents with a `private` folder: their builders were killed, or are still building."""
    return [path.stem for path in folder().glob("*.lent")]


def discard(content: str) -> None:
    """Removes the `private` folder of a killed builder. Call it with the content's lock held."""
    shutil.rmtree(folder() / f"{content}.lent", ignore_errors=True)


def use(content: str) -> None:
    """Marks a content as used now."""
    (folder() / content).touch()


def last_used(content: str) -> float | None:
    """When this user last used a content, in seconds since the epoch; None if never."""
    path = folder() / content
    return path.stat().st_mtime if path.exists() else None


def forget(content: str) -> None:
    """Removes the mark of a content's last use."""
    (folder() / content).unlink(missing_ok=True)


def _try(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
