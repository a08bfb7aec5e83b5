"""Finds the images that a Harbor task's agent works in and its tests run in."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harnessgym.errors import TaskError
from harnessgym.sandbox import CONTEXT
from harnessgym.sandboxes.images.recipes import instructions
from harnessgym.tasks.compose import only_service
from harnessgym.tasks.harbor_table import Environment, VerifierTable
from harnessgym.tasks.notes import Notes
from harnessgym.tasks.substitution import substituted_all


def workdir_of(dockerfile: Path) -> str | None:
    """The WORKDIR of the last stage; None if it comes from the base image or from a variable."""
    found: PurePosixPath | None = None
    for _, word, rest in instructions(dockerfile.read_text(encoding="utf-8", errors="replace")):
        if word == "FROM":
            found = None
        elif word == "WORKDIR":
            path = PurePosixPath(rest.strip().strip("\"'"))
            found = (
                None if "$" in rest or (found is None and not path.is_absolute()) else (found or path) / path
            )
    return None if found is None else str(found)


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
    said = verifier.environment or Environment()
    refuse(said, folder, where)
    if not own and said.docker_image is None:
        env = substituted_all(said.env, os.environ, f"{where}: verifier.environment.env")
        return HarborContainer(agents.image, agents.home, {**agents.env, **env})
    found = place_of(said, tests, where, notes)
    if agents.home == WORKDIR:
        raise TaskError(
            f"{where}: environment.workdir: tests run in an image of their own, so it must be known where "
            "the agent's folder "
            "lies there. Write the absolute path that is the WORKDIR of the agent's image."
        )
    return HarborContainer(found.image, agents.home, found.env, has_tests=own)


def _context(folder: Path) -> str | None:
    return f"{CONTEXT}{folder.resolve()}" if (folder / "Dockerfile").is_file() else None


def _home(image: str, said: str | None) -> str:
    """The agent's working folder: from the task, its Dockerfile, or else the image."""
    # The image's root cannot be a workspace: an empty home means a folder of its own.
    if said is None and image.startswith(CONTEXT):
        said = workdir_of(Path(image.removeprefix(CONTEXT)) / "Dockerfile")
    return WORKDIR if said is None else "" if said == "/" else said


def _only_windows(folder: Path) -> bool:
    tests = folder / "tests"
    return (tests / "test.bat").is_file() and not (tests / "test.sh").is_file()
