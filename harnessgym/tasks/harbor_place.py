"""The containers of a Harbor task, for its agent and its tests, and the paths that are graded.

The graded paths are the agent's working folder, `/logs/artifacts` and the task's own artifacts. `${VAR}` and
`${VAR:-default}` in values of a task are filled in.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harnessgym.errors import TaskError
from harnessgym.sandbox import CONTEXT
from harnessgym.sandboxes.images.recipes import instructions
from harnessgym.tasks.compose import only_service
from harnessgym.tasks.harbor_table import Artifact, Environment, VerifierTable
from harnessgym.tasks.notes import Notes

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def substituted(text: str, known: Mapping[str, str], where: str) -> str:
    """`text` with its variables filled in. If there is a default, an empty value counts as unset.

    Raises TaskError with `where` for an unknown variable without a default.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        default = match[2]
        if known.get(name) or (default is None and name in known):
            return known[name]
        if default is None:
            raise TaskError(
                f"{where}: the environment variable {name} is not set. Set it, or write ${{{name}:-default}}."
            )
        return default

    return _VARIABLE.sub(value, text)


def substituted_all(table: Mapping[str, str], known: Mapping[str, str], where: str) -> dict[str, str]:
    """Fills in the variables in every value of a table."""
    return {key: substituted(value, known, f"{where}.{key}") for key, value in table.items()}


def workdir_of(dockerfile: Path) -> str | None:
    """The WORKDIR of the last stage; None if it comes from the base image or from a variable."""
    workdir: PurePosixPath | None = None
    for _, word, rest in instructions(dockerfile.read_text(encoding="utf-8", errors="replace")):
        if word == "FROM":
            workdir = None
        elif word == "WORKDIR":
            path = PurePosixPath(rest.strip().strip("\"'"))
            workdir = (
                None
                if "$" in rest or (workdir is None and not path.is_absolute())
                else (workdir or path) / path
            )
    return None if workdir is None else str(workdir)


WORKDIR = "@workdir"
"""Stands for the image's own WORKDIR."""


@dataclass(frozen=True, slots=True)
class HarborContainer:
    """A container that a task describes."""

    image: str
    home: str
    """The absolute path that becomes the workspace, `WORKDIR`, or empty."""
    env: Mapping[str, str]
    has_tests: bool = False
    """Whether the image contains `/tests`."""


def refuse(environment: Environment, folder: Path, where: Path) -> None:
    """Raises TaskError if the task needs what no sandbox has."""
    lacking = (
        (environment.os == "windows" or _only_windows(folder), "os: it is for Windows; sandboxes are Linux"),
        (environment.gpus, f"gpus: it wants {environment.gpus}; sandboxes have none"),
        (environment.tpu, "tpu: sandboxes have none"),
    )
    for wanted, why in lacking:
        if wanted:
            raise TaskError(f"{where}: environment.{why}. The task is left out.")


def place_of(environment: Environment, folder: Path, where: Path, notes: Notes) -> HarborContainer:
    """The container of an `environment/` folder and its table. Raises TaskError if it has no image."""
    env = substituted_all(environment.env, os.environ, f"{where}: environment.env")
    compose = folder / "docker-compose.yaml"
    if compose.is_file():
        known = {
            "CONTEXT_DIR": str(folder.resolve()),
            "MAIN_IMAGE_NAME": "",
            "PREBUILT_IMAGE_NAME": environment.docker_image or "",
            "TEST_DIR": "/tests",
        }
        service = only_service(compose, "main", known)
        for what in service.without:
            notes.say(f"{what} has no effect")
        image = environment.docker_image or service.image or _context(folder)
        home = environment.workdir or service.workdir
        env = {**service.env, **env}
    else:
        image = environment.docker_image or _context(folder)
        home = environment.workdir
    if image is None:
        raise TaskError(
            f"{where}: there is neither {folder / 'Dockerfile'} nor environment.docker_image. Add one of "
            "them."
        )
    return HarborContainer(image, _home(image, home), env)


def grading_place(
    verifier: VerifierTable, folder: Path, agents: HarborContainer, where: Path, notes: Notes
) -> HarborContainer:
    """The container for tests: like the agent's, or as `tests/` or `[verifier.environment]` describes it."""
    tests = folder / "tests"
    own = any((tests / name).is_file() for name in ("Dockerfile", "docker-compose.yaml"))
    environment = verifier.environment or Environment()
    refuse(environment, folder, where)
    if not own and environment.docker_image is None:
        env = substituted_all(environment.env, os.environ, f"{where}: verifier.environment.env")
        return HarborContainer(agents.image, agents.home, {**agents.env, **env})
    container = place_of(environment, tests, where, notes)
    if agents.home == WORKDIR:
        raise TaskError(
            f"{where}: environment.workdir: tests run in an image of their own, so it must be known where "
            "the agent's folder lies there. Write the absolute path that is the WORKDIR of the agent's "
            "image."
        )
    return HarborContainer(container.image, agents.home, container.env, has_tests=own)


def _context(folder: Path) -> str | None:
    return f"{CONTEXT}{folder.resolve()}" if (folder / "Dockerfile").is_file() else None


def _home(image: str, home: str | None) -> str:
    """The agent's working folder: from the task, its Dockerfile, or else the image."""
    # The image's root cannot be a workspace: an empty home means a folder of its own.
    if home is None and image.startswith(CONTEXT):
        home = workdir_of(Path(image.removeprefix(CONTEXT)) / "Dockerfile")
    return WORKDIR if home is None else "" if home == "/" else home


def _only_windows(folder: Path) -> bool:
    tests = folder / "tests"
    return (tests / "test.bat").is_file() and not (tests / "test.sh").is_file()


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
                f"{where}: artifacts: {path} lies where nothing is handed over from. Write it to the "
                f"working folder or to {_ALWAYS}."
            )
        folders.append(str(above))
        collect.append(str(path))
