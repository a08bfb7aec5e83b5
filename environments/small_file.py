"""Reads an agent's file as hostile data: follows no links, never blocks on pipes, bounds the read."""

import os
import stat
from pathlib import Path


def read_small_text(path: Path, most: int) -> str | None:
    """The UTF-8 text of a regular file of at most `most` bytes; None for anything else."""
    # Open first and check the descriptor: between a check of the path and the opening, a link could be
    # swapped in.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        return os.read(descriptor, most).decode()
    except (OSError, UnicodeDecodeError):
        return None
    finally:
        os.close(descriptor)
