"""Exports files and folders that lie beside a workspace together with it, as plain data."""

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
    """A path beside the workspace to export."""

    path: str
    """Absolute path in the sandbox."""
    root: int
    """Descriptor of the folder that contains it. The caller owns it."""
    parts: tuple[str, ...]
    """The path relative to that folder; empty for the folder itself."""


def export_with(
    workspace: Workspace,
    local: Path,
    collected: Sequence[Collected],
    owner: int | None,
    max_bytes: int,
    max_files: int,
) -> WorkspaceExport:
    """Copies a workspace to the new folder `local` and the collected paths to `local / OUTSIDE`.

    The bounds are for both together. An entry of the workspace named `OUTSIDE` is left out, and so are links
    and special files in collected paths. A path that does not exist is skipped. Raises SandboxError if this
    machine cannot store the files.
    """
    whole = workspace.export(local, max_bytes, max_files, without=OUTSIDE)
    for each in collected:
        if whole.overflow:
            break
        export = _take(each, local / OUTSIDE, owner, max_bytes - whole.size, max(0, max_files - whole.files))
        left_out = tuple(f"{OUTSIDE}{each.path}{name}" for name in export.left_out)
        whole = WorkspaceExport(
            whole.files + export.files,
            whole.size + export.size,
            tuple(sorted((*whole.left_out, *left_out))),
            export.overflow and f"{each.path} and what was exported before it: {export.overflow}",
        )
    return whole


def _take(
    each: Collected, outside: Path, owner: int | None, max_bytes: int, max_files: int
) -> WorkspaceExport:
    """Copies one collected path.

    `left_out` is relative to the path: "" is the path itself; other entries begin with a slash.
    """
    root = Workspace(each.root, owner, 0)
    target = outside / each.path.lstrip("/")
    with ExitStack() as stack:
        try:
            status, folder, name = _open_path(root, each, stack)
        except FileNotFoundError:
            return WorkspaceExport(0, 0, ())
        # A link or file stands in the place of a folder on the path, which may be a trap: leave it out.
        except SandboxError:
            return WorkspaceExport(0, 0, ("",))
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISDIR(status.st_mode):
            return _below(Exporter(folder, target, max_bytes, max_files, links=False).run())
        exporter = Exporter(folder, target.parent, max_bytes, max_files, links=False)
        export = exporter.alone(FolderEntry(folder, (), name, status))
        return replace(export, left_out=("",) if export.left_out else ())


def _open_path(root: Workspace, each: Collected, stack: ExitStack) -> tuple[os.stat_result, int, str]:
    """Returns the path's status, a descriptor, and a name.

    For a folder, they are its own descriptor and ""; otherwise its parent's descriptor and its name there.
    """
    if not each.parts:
        folder = stack.enter_context(root.opened())
        return os.fstat(folder), folder, ""
    above, name = stack.enter_context(root.parent("/".join(each.parts)))
    status = os.stat(name, dir_fd=above, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        return status, above, name
    return status, stack.enter_context(root.folder(each.parts, each.path)), ""


def _below(export: WorkspaceExport) -> WorkspaceExport:
    return replace(export, left_out=tuple(f"/{name}" for name in export.left_out))
