"""Copies exported files into a sandbox: regular files with `upload`, then links and empty folders with `tar`.

`tar` runs in the fresh sandbox, on names that this machine read, before any code of the agent's runs there.
"""

import io
import logging
import os
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio.to_thread

from harnessgym.errors import HarnessGymError, SandboxError
from harnessgym.grading.verifier import Opener
from harnessgym.sandbox import Sandbox
from harnessgym.sandboxes.containers import SET_ASIDE

LeftBehind = Callable[[str], None]
"""Called with a sentence about each folder or sandbox that could not be removed after grading."""
warn_left_behind: LeftBehind = logging.getLogger("harnessgym.grading").warning
_TIMEOUT_S = 600.0
_LINKS = 10_000
_LAY_OF_IMAGE = """\
[ -d "$1" ] || exit 0
workspace=$PWD
owner=$(stat -c %u:%g .)
cd "$1"
while IFS= read -r path; do
    if [ -L "$path" ]; then printf './%s\\n' "$path"; continue; fi
    case $path in *.pyc) if [ -f "$path" ]; then printf './%s\\n' "$path"; fi;; esac
done | tar -cf - -T - | tar -C "$workspace" -xf -
chown -hR "$owner" "$workspace"
"""


async def lay(folder: Path, sandbox: Sandbox) -> None:
    """Copies everything in `folder` into the sandbox's workspace. Raises SandboxError if that fails."""
    # Links come last: an upload after them could write through one and land outside of the workspace.
    rest = await anyio.to_thread.run_sync(lambda: list(_not_uploaded(folder)))
    made = partial(tempfile.TemporaryDirectory, dir=folder.parent, prefix="laying-")
    temporary = await anyio.to_thread.run_sync(made)
    try:
        for child in await anyio.to_thread.run_sync(_uploaded, folder, rest, Path(temporary.name) / "plain"):
            await sandbox.upload(child, child.name)
    finally:
        await anyio.to_thread.run_sync(temporary.cleanup)
    if not rest:
        return
    archive = await anyio.to_thread.run_sync(_archive, folder, rest)
    result = await sandbox.exec(["tar", "-xof", "-"], stdin=archive, timeout_s=_TIMEOUT_S)
    if not result.ok:
        raise SandboxError(
            f"Links and empty folders could not be made in the grading sandbox: {result.describe(500)}. The "
            "image needs tar."
        )


def holding(
    folder: Path, fresh: Opener, left_out: Sequence[str] = (), left_behind: LeftBehind = warn_left_behind
) -> Opener:
    """A factory of sandboxes from `fresh` that hold the files in `folder`.

    `left_out` is what the export left out, and compiled Python. Links and .pyc files that the image has at
    these paths are copied from it first.
    """

    @asynccontextmanager
    async def open_sandbox() -> AsyncIterator[Sandbox]:
        stack = AsyncExitStack()
        sandbox = await stack.enter_async_context(fresh())
        try:
            if left_out:
                await lay_of_image(left_out, sandbox)
            await lay(folder, sandbox)
            yield sandbox
        finally:
            try:
                await stack.aclose()
            except (HarnessGymError, OSError) as error:
                # The result that was measured in this sandbox is still valid.
                left_behind(f"A sandbox for grading could not be removed: {error}")

    return open_sandbox


async def lay_of_image(left_out: Sequence[str], sandbox: Sandbox) -> None:
    """Copies links and .pyc files at the paths `left_out` from the image's home: what the agent left there
    is not graded, but a task may need what the image has.

    Raises SandboxError if that fails.
    """
    named = "".join(f"{path}\n" for path in left_out[:_LINKS]).encode(errors="surrogateescape")
    done = await sandbox.exec(
        ["sh", "-ec", _LAY_OF_IMAGE, "links", SET_ASIDE], stdin=named, user="root", timeout_s=_TIMEOUT_S
    )
    if not done.ok:
        raise SandboxError(
            f"Files of the image could not be copied into the grading sandbox: {done.describe(500)}."
        )


def _uploaded(folder: Path, rest: Sequence[Path], copy: Path) -> list[Path]:
    """The entries to upload: those of the folder, or of a copy without links if it has any."""
    linked = any(entry.is_symlink() for entry in rest)
    return sorted((_without_links(folder, copy) if linked else folder).iterdir())


def _not_uploaded(folder: Path) -> Iterator[Path]:
    """Links, and folders that contain no file or folder."""
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink():
            yield entry
        elif entry.is_dir():
            if all(child.is_symlink() for child in entry.iterdir()):
                yield entry
            yield from _not_uploaded(entry)


def _archive(folder: Path, entries: Sequence[Path]) -> bytes:
    """A tar in GNU format, which keeps names as raw bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8") as archive:
        for entry in entries:
            member = tarfile.TarInfo(f"./{os.path.relpath(entry, folder)}")
            if entry.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, os.readlink(entry)
            else:
                member.type = tarfile.DIRTYPE
                member.mode = 0o755
            archive.addfile(member)
    return buffer.getvalue()


def _without_links(folder: Path, copy: Path) -> Path:
    """The same tree as hard links, without symbolic links."""

    def links(where: str, entries: list[str]) -> list[str]:
        return [name for name in entries if os.path.islink(os.path.join(where, name))]

    shutil.copytree(folder, copy, ignore=links, copy_function=os.link)
    return copy
