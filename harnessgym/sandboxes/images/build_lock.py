"""One builder at a time for one content, on one machine, whatever the number of processes; and when a
content was last used.
"""

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
    """Where the locks and marks of this machine's user are."""
    found = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harnessgym" / "images"
    found.mkdir(parents=True, exist_ok=True)
    return found


@contextmanager
def alone(content: str, say: Callable[[str], None]) -> Iterator[None]:
    """Holds the content's lock; says every few seconds that it waits for another process. A killed holder
    holds nothing.
    """
    lock = os.open(folder() / f"{content[:2]}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    began = said = time.monotonic()
    try:
        while not _try(lock):
            if (now := time.monotonic()) - said > _SAY_S:
                said = now
                say(f"another process builds it; waited {now - began:.0f} s")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(lock)


@contextmanager
def idle(content: str) -> Iterator[bool]:
    """Whether nobody holds the content's lock; if so it is held meanwhile."""
    lock = os.open(folder() / f"{content[:2]}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        yield _try(lock)
    finally:
        os.close(lock)


@contextmanager
def private(content: str) -> Iterator[Path]:
    """An empty folder that only this user can read, gone afterwards; one that a killed builder left goes
    first.

    For who holds the content's lock.
    """
    path = folder() / f"{content}.lent"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def abandoned() -> list[str]:
    """Contents whose builders were killed and left such a folder, or still build."""
    return [path.stem for path in folder().glob("*.lent")]


def discard(content: str) -> None:
    """Removes the folder of a builder that was killed. For who holds the content's lock."""
    shutil.rmtree(folder() / f"{content}.lent", ignore_errors=True)


def use(content: str) -> None:
    """Marks a content as used now."""
    (folder() / content).touch()


def last_used(content: str) -> float | None:
    """When it was, as seconds since the epoch; None if this user never did."""
    path = folder() / content
    return path.stat().st_mtime if path.exists() else None


def forget(content: str) -> None:
    """Drops the mark."""
    (folder() / content).unlink(missing_ok=True)


def _try(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
