"""Splits a package's source distribution into the files that agents work on and the tests that grade them.

`clocked` finds tests that read a clock, wait, or use threads: their results may differ on a busy machine.
"""

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from environments.swe.package import SourcePackage, package
from environments.swe.sdist import texts

_LARGEST = 200_000
"""Largest file besides code and tests that is part of the workspace, in characters."""
_LEFT_OUT = ("PKG-INFO", "uv.lock", "pdm.lock")


@dataclass(frozen=True, slots=True)
class Tree:
    """A package without a fault."""

    package: SourcePackage
    files: Mapping[str, str]
    """Files of the workspace, relative path to text."""
    code: tuple[str, ...]
    """Python files that may get faults."""
    tests: Mapping[str, str]
    """Files that the grader writes: test files, and the data that they read."""
    graded: tuple[str, ...]
    """The test files among them, in order."""


@functools.cache
def tree(name: str) -> Tree:
    """The tree of a package. Raises TaskError if its distribution is not available."""
    wanted = package(name)
    all_files = texts(wanted)
    # The grader runs tests in a folder of their own, so their paths start at the test folder's name. Test
    # files that are not graded are left out of the workspace too.
    above = str(PurePosixPath(wanted.tests).parent)
    within = {path: text for path, text in all_files.items() if _below(path, (wanted.tests,))}
    laid = {path if above == "." else path.removeprefix(f"{above}/"): text for path, text in within.items()}
    graded = _graded(wanted, laid)
    laid = {path: text for path, text in laid.items() if path in graded or not _is_test(path)}
    shown = {path for path in within if (path if above == "." else path.removeprefix(f"{above}/")) in laid}
    files = {
        path: text
        for path, text in all_files.items()
        if path in shown or (path not in within and _kept(path, text, wanted))
    }
    code = tuple(sorted(path for path in files if _is_code(path, wanted)))
    return Tree(wanted, files, code, laid, graded)


def _is_test(path: str) -> bool:
    """Whether pytest would read a file."""
    name = PurePosixPath(path).name
    return name == "conftest.py" or (name.endswith(".py") and name.startswith("test_"))


def _kept(path: str, text: str, package: SourcePackage) -> bool:
    if _below(path, (*package.sources, *package.code)) and package.sources != (".",):
        return ".egg-info/" not in path
    if _below(path, package.code):
        return True
    return "/" not in path and len(text) <= _LARGEST and path not in _LEFT_OUT


def _is_code(path: str, package: SourcePackage) -> bool:
    wanted = [f"{package.code[0]}/{name}" for name in package.faulty] or package.code
    return path.endswith(".py") and _below(path, tuple(wanted)) and not _below(path, (package.tests,))


def _graded(package: SourcePackage, laid: Mapping[str, str]) -> tuple[str, ...]:
    root = PurePosixPath(package.tests).name
    if package.graded:
        return tuple(f"{root}/{path}" for path in package.graded)
    return tuple(sorted(path for path in laid if _is_test(path) and not path.endswith("conftest.py")))


def _below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


_WORDS = re.compile(
    r"\b(sleep|now|utcnow|today|perf_counter|monotonic|threading|Thread|timeout|time\.time|timeit)\b"
)


def clocked(tree: Tree) -> frozenset[str]:
    """Ids, without parameters, of the test functions that read a clock, wait, or use threads.

    If a class's set-up does so, all its tests count.
    """
    test_ids: set[str] = set()
    for path in tree.graded:
        text = tree.tests[path]
        _collect(ast.parse(text), text, path, test_ids)
    return frozenset(test_ids)


def _collect(node: ast.AST, text: str, above: str, hits: set[str]) -> None:
    children = [
        child for child in ast.iter_child_nodes(node) if isinstance(child, ast.FunctionDef | ast.ClassDef)
    ]
    for child in children:
        where = f"{above}::{child.name}"
        if isinstance(child, ast.ClassDef):
            _collect(child, text, where, hits)
        elif _WORDS.search(ast.get_source_segment(text, child) or ""):
            if child.name.startswith("test"):
                hits.add(where)
            elif child.name.lower() in ("setup", "setupclass", "setup_method"):
                hits |= {f"{above}::{other.name}" for other in children}
