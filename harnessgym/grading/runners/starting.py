"""Starts a program that imports code of the workspace, and has that code read from its sources alone.

Runs in a grading sandbox as `python3 -I -B -c <this text> <text of the program>`. A .pyc file can hold other
code than the source beside it, or have no source at all. So outside of the interpreter's own folders, which
keep theirs, no `__pycache__` folder, .pyc file or zip archive is read. Extension modules are.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from typing import Any


class SourceOnlyLoader(SourceFileLoader):
    """Loads a module from its source, whatever was compiled from it."""

    def get_code(self, fullname: str) -> Any:
        """The compiled source."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def source_only(workspace: str) -> None:
    """From here on, imports read compiled files of the interpreter's own folders alone."""
    # A folder of the import path at start-up can be the workspace's, by a .pth file of the image.
    start = [os.path.realpath(path) for path in sys.path if path]
    own = tuple(path for path in start if not _is_below(path, workspace))

    def finder(path: str) -> FileFinder:
        if any(_is_below(os.path.realpath(path), trusted) for trusted in own):
            raise ImportError(path)
        return FileFinder(
            path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (SourceOnlyLoader, SOURCE_SUFFIXES)
        )

    sys.path_hooks.insert(0, finder)
    sys.path_importer_cache.clear()


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def main() -> None:
    """Runs the program in the first argument."""
    source_only(os.path.realpath(os.getcwd()))
    program = sys.argv.pop(1)
    exec(compile(program, "<program>", "exec", dont_inherit=True), {"__name__": "__main__"})  # noqa: S102


if __name__ == "__main__":
    main()
