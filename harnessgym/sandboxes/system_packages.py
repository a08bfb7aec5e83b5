"""Python packages that lie on this machine for other programs, and what sandboxes may see of them.

A sandbox shows the machine's `/usr`, so that tools work. Some of its folders hold Python packages of other
programs, and one of them may be the very package that a task is about. Such folders are *covered*: a sandbox
sees an empty folder, with the packages in it that a tool needs by name.
"""

import functools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

TOOLS = ("pip", "pytest", "setuptools", "wheel")
"""Distributions that stay visible, with everything that they require."""
_TREES = tuple(
    f"{top}{name}" for top in ("/usr", "/usr/local") for name in ("", "/lib", "/lib32", "/lib64", "/share")
)
"""Folders whose entries belong to different programs."""
_SITES = ("site-packages", "dist-packages")
_LIBRARY = re.compile(r"python\d(\.\d+)?")
"""Name of a folder with Python's standard library, or with Debian's packages for it."""
_PACKAGES = 20
"""A program with at least so many packages brings libraries of others along."""
_SEPARATORS = re.compile(r"[-_.]+")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class CoveredFolder:
    """A folder that sandboxes see without its content."""

    path: str
    kept: tuple[str, ...] = ()
    """Names of the entries that stay visible."""


def covered_folders(
    used: Sequence[str], shown: Sequence[str] = (), trees: Sequence[str] = _TREES
) -> tuple[CoveredFolder, ...]:
    """What to cover for an interpreter that imports from the folders `used`. `shown` names further folders
    to leave as they are. Neither they nor what is above or below them is covered.
    """
    needed = {os.path.realpath(path) for path in (*used, *shown)}
    return tuple(
        CoveredFolder(path, _tools_in(path) if os.path.basename(path) in _SITES else ())
        for path in package_folders(tuple(trees))
        if not any(_is_related(path, each) for each in needed)
    )


def _is_related(path: str, other: str) -> bool:
    return Path(path).is_relative_to(other) or Path(other).is_relative_to(path)


@functools.cache
def package_folders(trees: tuple[str, ...] = _TREES) -> tuple[str, ...]:
    """Folders with Python packages in this machine's system: those that an interpreter imports from, and
    programs with many packages of their own. Reads every folder of the system once, in about half a second.
    """
    folders = []
    for tree in trees:
        if os.path.islink(tree):
            continue
        for entry in sorted(_folders_in(tree), key=lambda each: each.name):
            if entry.path not in trees:
                folders += _packages_below(entry)
    return tuple(folders)


def _packages_below(program: os.DirEntry[str]) -> list[str]:
    """The whole folder of a program with many packages, else each folder in it that is imported from."""
    sites = []
    packages = 0
    folders = [program.path]
    while folders:
        folder = folders.pop()
        if os.path.basename(folder) in _SITES:
            sites.append(folder)
            continue
        packages += os.path.exists(f"{folder}/__init__.py")
        if packages >= _PACKAGES and not _LIBRARY.fullmatch(program.name):
            return [program.path]
        folders += [entry.path for entry in _folders_in(folder)]
    return sites


def _folders_in(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return


@functools.cache
def _tools_in(folder: str) -> tuple[str, ...]:
    """Entries of a folder that belong to `TOOLS` and to what they require."""
    there = {_normal(each.metadata["Name"]): each for each in distributions(path=[folder])}
    entries = os.listdir(folder)
    kept: set[str] = set()
    known: set[str] = set()
    waiting = list(TOOLS)
    while waiting:
        name = waiting.pop()
        if name in known or name not in there:
            continue
        known.add(name)
        kept |= _entries_of(there[name], name, entries)
        waiting += [_normal(required) for required in _requires(there[name])]
    return tuple(sorted(kept))


def _requires(distribution: Distribution) -> Iterator[str]:
    """Names of what a distribution requires without any extra."""
    for line in distribution.requires or ():
        name = _NAME.match(line)
        if name is not None and "extra ==" not in line:
            yield name.group()


def _entries_of(distribution: Distribution, name: str, entries: Sequence[str]) -> set[str]:
    """The entries of a folder that a distribution installed: as it lists them, else by top-level names."""
    names = {Path(file).parts[0] for file in distribution.files or ()}
    for top in (distribution.read_text("top_level.txt") or "").split():
        names |= {top, f"{top}.py"}
    own = {
        entry
        for entry in entries
        if entry.endswith((".dist-info", ".egg-info"))
        and _normal(entry.split("-")[0].removesuffix(".egg")) == name
    }
    return (names | own) & set(entries)


def _normal(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()
