"""The project's Python files, parsed.

The packages are counted without `harnessgym/store/migrations` (alembic's files, one per change of the schema)
and without `environments/*/tasks` (repositories that agents are given to work on).
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("harnessgym", "proxies", "environments", "trainers")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One file."""

    path: str
    """Relative to the project's root."""
    text: str

    @property
    def name(self) -> str:
        """Its dotted name; of an `__init__.py`, the package's."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, without their ends."""
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree, as `ast.walk` yields them, which takes twice as long."""
        nodes: list[ast.AST] = [self.tree]
        for node in nodes:
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, ast.AST):
                    nodes.append(value)
                elif isinstance(value, list):
                    nodes += [each for each in value if isinstance(each, ast.AST)]
        return nodes


@dataclass(frozen=True)
class Location:
    """A line of a file, and what is there."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def package_modules(root: Path = ROOT) -> list[Module]:
    """The modules of the four packages."""
    return [module for package in PACKAGES for module in _read(root, package) if not _is_data(module.path)]


def modules_of_tests(root: Path = ROOT) -> list[Module]:
    """The files of `tests/`, without samples of other people's formats."""
    return [module for module in _read(root, "tests") if "/samples/" not in module.path]


def _read(root: Path, folder: str) -> Iterator[Module]:
    for path in sorted((root / folder).rglob("*.py")):
        yield Module(str(path.relative_to(root)), path.read_text())


def _is_data(path: str) -> bool:
    parts = path.split("/")
    return (parts[0] == "environments" and "tasks" in parts[2:-1]) or path.startswith(
        "harnessgym/store/migrations/"
    )
