"""A full disk, recognised and named: whoever meets one, the message says which and what to do."""

import errno
import shutil
from pathlib import Path

_LEAST_FREE = 1 << 20
"""Bytes: with less than this a store, a log or a checkpoint cannot be relied upon to be written."""
_REMEDY = (
    "Free space there and run the same command again: what was committed is safe, and a run goes on from it."
)


def shortage(path: Path) -> str | None:
    """What to tell people if the disk that holds `path` is as good as full; else None."""
    usage = shutil.disk_usage(path)
    if usage.free >= _LEAST_FREE:
        return None
    return f"The disk that holds {path} is full ({usage.free:,} of {usage.total:,} bytes are free). {_REMEDY}"


def full_disk(error: BaseException) -> str | None:
    """What to tell people if an error, or one that it came from, is a full disk or quota; else None."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError) and at.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f"The disk that holds {at.filename} is full" if at.filename else "A disk is full"
            return f"{where} ({at.strerror}). {_REMEDY}"
        at = at.__cause__ or at.__context__
    return None
