"""Finds the files that Python would import, among exported files on this machine. Imports nothing."""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_LONGEST = 1 << 20
"""Largest source file in bytes. Shipped files are far smaller."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """A module that came with a task."""

    text: str
    package: bool


@dataclass(frozen=True, slots=True)
class Search:
    """The import path of a workspace, in order, and the modules that should be found there.

    The grading interpreter searches its own library first, so the workspace cannot replace it.
    """

    roots: tuple[Path, ...]
    shipped: Mapping[str, Shipped]
    """Dotted name to module."""

    def problem(self, source: str) -> str:
        """A sentence for the first module that a program imports, directly or not, and that was not shipped.

        Empty if every module is the shipped one.
        """
        waiting = list(imported(source, ""))
        seen = set[str]()
        while waiting:
            module = waiting.pop()
            if module in seen or module.partition(".")[0] in sys.stdlib_module_names:
                continue
            seen.add(module)
            problem = self._wrong(module)
            if problem:
                return problem
            if module in self.shipped:
                found = self.shipped[module]
                waiting += imported(found.text, module if found.package else module.rpartition(".")[0])
            waiting += [module.rpartition(".")[0]] * ("." in module)
        return ""

    def _wrong(self, module: str) -> str:
        found = self._find(module)
        wanted = self.shipped.get(module)
        if wanted is None:
            return "" if found is None else f"{module} did not come with the task"
        if found is None:
            return f"{module} is not found"
        same = found.stat().st_size <= _LONGEST and found.read_bytes() == wanted.text.encode()
        return (
            ""
            if same and (found.name == "__init__.py") == wanted.package
            else f"{module} is not what came with the task"
        )

    def _find(self, module: str) -> Path | None:
        """The source file that Python would import, or None."""
        # As Python does it: the first folder with an `__init__.py` is the package. Without one, all folders
        # of the name form a namespace package.
        folders = list(self.roots)
        *packages, name = module.split(".")
        for package in packages:
            inner = [folder / package for folder in folders if (folder / package).is_dir()]
            folders = [folder for folder in inner if (folder / "__init__.py").is_file()][:1] or inner
        files = [
            path for folder in folders for path in (folder / name / "__init__.py", folder / f"{name}.py")
        ]
        return next((path for path in files if path.is_file()), None)


def imported(source: str, package: str) -> Iterator[str]:
    """Dotted names that a source text may import. `package` is the text's own package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def modules_below(files: Mapping[str, str], root: str) -> dict[str, Shipped]:
    """Every Python file below a folder, by its dotted name from there."""
    found = {}
    for path, text in files.items():
        file = PurePosixPath(path)
        if file.suffix == ".py" and file.is_relative_to(root):
            parts = file.relative_to(root).with_suffix("").parts
            package = parts[-1] == "__init__"
            found[".".join(parts[:-1] if package else parts)] = Shipped(text, package)
    found.pop("", None)
    return found
