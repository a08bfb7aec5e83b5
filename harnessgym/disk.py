"""Recognises a full disk, and says which disk it is and what to do."""

import errno
import shutil
from pathlib import Path

_LEAST_FREE = 1 << 20
"""Bytes. With less free space, writes of a store, a log or a checkpoint may fail."""
_REMEDY = (
    "Free space there and run the same command again: what was committed is safe, and a run goes on from it."
)


def shortage(path: Path) -> str | None:
    """A message if the disk that holds `path` is full or nearly so; else None."""
    usage = shutil.disk_usage(path)
    if usage.free >= _LEAST_FREE:
        return None
    return f"The disk that holds {path} is full ({usage.free:,} of {usage.total:,} bytes are free). {_REMEDY}"


def full_disk(error: BaseException) -> str | None:
    """A message if an error, or one of its causes, is a full disk or an exceeded quota; else None."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError) and at.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f"The disk that holds {at.filename} is full" if at.filename else "A disk is full"
            return f"{where} ({at.strerror}). {_REMEDY}"
        at = at.__cause__ or at.__context__
    return None
