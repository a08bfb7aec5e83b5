"""What lies beside a workspace, taken out with it: files and folders as data, whatever stands there
instead.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from harnessgym.errors import SandboxError
from harnessgym.sandbox import WorkspaceExport
from harnessgym.sandboxes.exporting import Exporter
from harnessgym.sandboxes.walk import FolderEntry
from harnessgym.sandboxes.workspace import Workspace
from harnessgym.task import OUTSIDE


@dataclass(frozen=True, slots=True)
class Collected:
    """A path beside the workspace that is asked for."""

    path: str
    """Absolute, as it is called in the sandbox."""
    root: int
    """Descriptor of the folder that it lies in; the caller's."""
    parts: tuple[str, ...]
    """The names from there; none for the folder itself."""


def export_with(
    workspace: Workspace,
    local: Path,
    collected: Sequence[Collected],
    owner: int | None,
    max_bytes: int,
    max_files: int,
) -> WorkspaceExport:
    """Copies a workspace to the new folder `local`, and what is collected to `OUTSIDE` in there, within the
    same bounds.

    What the workspace has of that name is left out; so are links and special files of what is collected. A
    path that is not there is passed over. Raises SandboxError when this machine cannot take the files.
    """
    whole = workspace.export(local, max_bytes, max_files, without=OUTSIDE)
    for each in collected:
        if whole.overflow:
            break
        taken = _take(each, local / OUTSIDE, owner, max_bytes - whole.size, max(0, max_files - whole.files))
        left_out = tuple(f"{OUTSIDE}{each.path}{name}" for name in taken.left_out)
        whole = WorkspaceExport(
            whole.files + taken.files,
            whole.size + taken.size,
            tuple(sorted((*whole.left_out, *left_out))),
            taken.overflow and f"{each.path} and what was taken out before it: {taken.overflow}",
        )
    return whole


def _take(
    each: Collected, outside: Path, owner: int | None, max_bytes: int, max_files: int
) -> WorkspaceExport:
    """`left_out` is relative to the path: empty for the path itself, else beginning with a slash."""
    place = Workspace(each.root, owner, 0)
    target = outside / each.path.lstrip("/")
    with ExitStack() as stack:
        try:
            status, folder, name = _found(place, each, stack)
        except FileNotFoundError:
            return WorkspaceExport(0, 0, ())
        except SandboxError:  # a folder on the way to it is something else
            return WorkspaceExport(0, 0, ("",))
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(status.st_mode):
            return _below(Exporter(folder, target, max_bytes, max_files, links=False).run())
        exporter = Exporter(folder, target.parent, max_bytes, max_files, links=False)
        found = exporter.alone(FolderEntry(folder, (), name, status))
        return replace(found, left_out=("",) if found.left_out else ())


def _found(place: Workspace, each: Collected, stack: ExitStack) -> tuple[os.stat_result, int, str]:
    """What it is; the descriptor of the folder that it is, or that holds it; its name there."""
    if not each.parts:
        folder = stack.enter_context(place.opened())
        return os.fstat(folder), folder, ""
    above, name = stack.enter_context(place.parent("/".join(each.parts)))
    status = os.stat(name, dir_fd=above, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        return status, above, name
    return status, stack.enter_context(place.folder(each.parts, each.path)), ""


def _below(found: WorkspaceExport) -> WorkspaceExport:
    return replace(found, left_out=tuple(f"/{name}" for name in found.left_out))
