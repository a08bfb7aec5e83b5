"""Explains errors of the system (a file, a disk, an address, a library) without a traceback."""

import errno
import traceback
from pathlib import Path

from harnessgym.disk import full_disk

_ROOT = Path(__file__).parents[2]
_PACKAGES = tuple(_ROOT / name for name in ("environments", "harnessgym", "proxies", "trainers"))
_REMEDIES = {
    errno.EROFS: "Give a folder on a disk that can be written.",
    errno.EACCES: "Give another one, or change its permissions.",
    errno.EPERM: "Give another one, or change its permissions.",
    errno.ENOENT: "Check how it is spelt, and that its folder is there.",
    errno.ENOTDIR: "Part of it is a file: give another one.",
    errno.EISDIR: "It is a folder: name a file.",
    errno.EMFILE: "Raise the limit with `ulimit -n`.",
    errno.ENAMETOOLONG: "Give a shorter one.",
}


def system_problem(error: BaseException) -> str | None:
    """A message if an error is the system's, not a bug of this program; else None."""
    if problem := full_disk(error):
        return problem
    if isinstance(error, ImportError):
        return (
            f"A library cannot be imported: {error} ({_line_of(error)}). Install it (again), for this "
            "Python and this machine: pip install 'harnessgym-rl[all]'."
        )
    if not isinstance(error, OSError) or error.errno is None:
        return None
    files = [str(each) for each in (error.filename, error.filename2) if each is not None]
    what = f"{' -> '.join(files)}: {error.strerror}" if files else f"{error.strerror}"
    remedy = _REMEDIES.get(error.errno, "Correct that, and run the same command again.")
    return f"{what} ({_line_of(error)}). {remedy}"


def _line_of(error: BaseException) -> str:
    """The innermost `FILE:LINE` of this program in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if any(map(Path(frame.filename).is_relative_to, _PACKAGES))] or frames
    if not own:
        return "no line"
    at = Path(own[-1].filename)
    return f"{at.relative_to(_ROOT) if at.is_relative_to(_ROOT) else at}:{own[-1].lineno}"
