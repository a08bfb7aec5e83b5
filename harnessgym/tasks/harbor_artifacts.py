"""What is graded of an agent's container: its working folder, `/logs/artifacts`, and a task's other paths."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harnessgym.errors import TaskError
from harnessgym.tasks.harbor_place import WORKDIR, HarborContainer
from harnessgym.tasks.harbor_table import Artifact
from harnessgym.tasks.notes import Notes

_ALWAYS = "/logs/artifacts"
_NEVER = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/sys",
    "/tmp",  # noqa: S108
    "/usr",
)
"""Folders that belong to the sandbox or to the system in the image."""


@dataclass(frozen=True, slots=True)
class Graded:
    """The graded paths, as fields of `harnessgym.task.Task`."""

    artifacts: tuple[str, ...]
    collect: tuple[str, ...]
    folders: tuple[str, ...]


def graded(
    artifacts: Sequence[Artifact], testing: HarborContainer, where: Path, notes: Notes, *, all_of: bool
) -> Graded:
    """The graded paths of a task. `all_of` says that tests see the whole working folder anyway.

    Raises TaskError for an artifact that no sandbox can export.
    """
    inside: list[str] = []
    collect = [_ALWAYS]
    folders = ["/logs", "/solution", *([] if testing.has_tests else ["/tests"])]
    for artifact in artifacts:
        if artifact.service != "main":
            raise TaskError(
                f"{where}: artifacts: there is no service {artifact.service!r} here, only main. Take it out."
            )
        if artifact.exclude:
            notes.say("`exclude` of artifacts has no effect: all of the artifact is kept")
        _sort(PurePosixPath(artifact.source), testing.home, inside, collect, folders, where)
    if not all_of and testing.home == WORKDIR and artifacts:
        notes.say(
            "tests see all of the agent's working folder, not only artifacts: environment.workdir does not "
            "say where it is"
        )
    whole = all_of or testing.home == WORKDIR or not artifacts
    return Graded(
        (".",) if whole else tuple(dict.fromkeys(inside)) or (".",),
        tuple(dict.fromkeys(collect)),
        tuple(folders),
    )


def _sort(
    path: PurePosixPath, home: str, inside: list[str], collect: list[str], folders: list[str], where: Path
) -> None:
    """Adds one path to `inside`, or to `collect` and `folders`."""
    if not path.is_absolute():
        inside.append(str(path))
    elif home not in ("", WORKDIR) and path.is_relative_to(home):
        inside.append(str(path.relative_to(home)))
    elif any(path.is_relative_to(folder) for folder in folders):
        collect.append(str(path))
    elif home == WORKDIR:
        # The image's WORKDIR is unknown, so the path may lie in it. Then the whole folder is graded.
        return
    else:
        above = path.parent if path.suffix else path
        if str(above) == "/" or any(above.is_relative_to(each) for each in _NEVER):
            raise TaskError(
                f"{where}: artifacts: {path} lies where nothing is handed over from. Write it to the working "
                "folder or to "
                f"{_ALWAYS}."
            )
        folders.append(str(above))
        collect.append(str(path))
