"""Folders that a sandbox has beside its workspace: checks their paths and finds which one holds a path."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from harnessgym.errors import TaskError
from harnessgym.sandboxes.containers import HOME, WORKSPACE

_SYSTEM = (
    "/",
    "/bin",
    "/boot",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/root",
    "/sbin",
    "/usr",
    "/usr/local",
    "/var",
)
"""Folders that an image needs unchanged."""
_OWN = ("/.harnessgym", "/dev", "/proc", "/run", "/sys", "/tmp", HOME, WORKSPACE)  # noqa: S108
"""Folders that sandboxes use themselves."""
_MOST = 32


def checked_folders(folders: Sequence[str]) -> tuple[str, ...]:
    """Returns the folders sorted, without duplicates.

    Raises TaskError for a folder that the sandbox or the image's system needs.
    """
    unique_folders = sorted({str(_absolute(folder)) for folder in folders})
    for folder in unique_folders:
        path = PurePosixPath(folder)
        if folder in _SYSTEM or any(
            path.is_relative_to(own) or PurePosixPath(own).is_relative_to(path) for own in _OWN
        ):
            raise TaskError(
                f"A task cannot have {folder} as a folder beside its workspace: the sandbox, or the system "
                "in the image, needs it as it is."
            )
    if len(unique_folders) > _MOST:
        raise TaskError(
            f"A task can have {_MOST} folders beside its workspace, and {len(unique_folders)} are named."
        )
    return tuple(unique_folders)


def check_apart(folders: Sequence[str], home: str) -> None:
    """Raises TaskError if one of `folders` and `home`, the link to the workspace, lie in each other."""
    for folder in folders if home else ():
        path = PurePosixPath(folder)
        if path.is_relative_to(home) or PurePosixPath(home).is_relative_to(path):
            raise TaskError(
                f"A task cannot have both {home} as its home and {folder} as a folder: one lies in the other."
            )


def check_collected(paths: Sequence[str], folders: Sequence[str]) -> None:
    """Raises TaskError for a path that lies in none of the folders."""
    for path in paths:
        if folder_of(str(_absolute(path)), folders) is None:
            there = ", ".join(folders) or "it has none"
            raise TaskError(
                f"A task collects only paths in its folders beside the workspace ({there}); {path} is in "
                "none of them."
            )


def folder_of(path: str, folders: Sequence[str]) -> str | None:
    """The innermost folder that contains or equals a path; None if there is none."""
    around = [folder for folder in folders if PurePosixPath(path).is_relative_to(folder)]
    return max(around, key=len, default=None)


def outermost(paths: Sequence[str]) -> tuple[str, ...]:
    """Returns the paths in order, without those inside another of them. Raises TaskError for a bad path."""
    unique_paths = list(dict.fromkeys(map(_absolute, paths)))
    return tuple(
        str(path) for path in unique_paths if not any(other in path.parents for other in unique_paths)
    )


def _absolute(path: str) -> PurePosixPath:
    if (
        not path.startswith("/")
        or path.startswith("//")
        or ".." in PurePosixPath(path).parts
        or set(path) & set(":,\0\n")
    ):
        raise TaskError(
            f"A path beside the workspace must be absolute, without `..`, `:` and `,`; {path!r} is not."
        )
    return PurePosixPath(path)
