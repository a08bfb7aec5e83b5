"""What a task's Dockerfile says of where an agent works."""

from pathlib import Path, PurePosixPath

from harnessgym.sandboxes.images.recipes import instructions


def workdir_of(dockerfile: Path) -> str | None:
    """The WORKDIR of the last stage; None if the file leaves it to the image it starts from, or to a
    variable.
    """
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
