"""What is counted in the modules: each function returns the places, and the table counts them."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.suites.house.source import Function, Location, Module

WIDE = 110
LONG_FUNCTION = 60
LONG_CLASS = 150
_MOCK = re.compile(r"\b(mock|Mock|MagicMock|AsyncMock|monkeypatch)\b|\bpatch\(")


def functions(modules: Iterable[Module]) -> list[tuple[Location, int]]:
    """Every function and method with its number of lines, decorators not counted."""
    return [
        (Location(module.path, node.lineno, node.name), _length(node))
        for module in modules
        for node in module.nodes
        if isinstance(node, Function)
    ]


def classes(modules: Iterable[Module]) -> list[tuple[Location, int]]:
    """Every class with its number of lines."""
    return [
        (Location(module.path, node.lineno, node.name), _length(node))
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.ClassDef)
    ]


def duplicate_classes(modules: Iterable[Module]) -> dict[str, list[Location]]:
    """The public class names that stand more than once at the top of modules, and where."""
    places: defaultdict[str, list[Location]] = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(Location(module.path, node.lineno, node.name))
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def wide_lines(modules: Iterable[Module], width: int) -> list[Location]:
    """The lines of more than `width` columns."""
    return [
        Location(module.path, number, f"{len(line)} columns")
        for module in modules
        for number, line in enumerate(module.lines, start=1)
        if len(line) > width
    ]


def parallel_assignments(modules: Iterable[Module]) -> list[Location]:
    """Assignments of a tuple to a tuple of the same length: `a, b = x, y`."""
    return [
        Location(module.path, node.lineno, module.lines[node.lineno - 1].strip())
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1
        if any(
            isinstance(each, ast.Tuple) and len(each.elts) == len(node.value.elts) for each in node.targets
        )
    ]


def comment_lines(modules: Iterable[Module]) -> list[Location]:
    """Lines that hold a comment and nothing else."""
    return [
        Location(module.path, token.start[0], token.string)
        for module in modules
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
        if token.type == tokenize.COMMENT
        and token.line.lstrip().startswith("#")
        and not token.string.startswith("#!")
    ]


def public_functions(modules: Iterable[Module]) -> Iterator[tuple[Location, bool]]:
    """Public functions, and public methods of public classes; and whether each has a docstring."""
    for module in modules:
        for node, name in _public(module.tree, ""):
            yield Location(module.path, node.lineno, name), ast.get_docstring(node) is not None


def tests(modules: Iterable[Module]) -> list[Location]:
    """Functions and methods that pytest would collect."""
    return [place for place, _ in functions(modules) if place.text.startswith("test_")]


def asserts(modules: Iterable[Module]) -> list[Location]:
    """The assert statements."""
    return [
        Location(module.path, node.lineno, "assert")
        for module in modules
        for node in module.nodes
        if isinstance(node, ast.Assert)
    ]


def mock_lines(modules: Iterable[Module]) -> list[Location]:
    """Lines that name a mock or a patch."""
    return [
        Location(module.path, number, line.strip())
        for module in modules
        for number, line in enumerate(module.lines, start=1)
        if _MOCK.search(line)
    ]


def root_entries(root: Path) -> list[str]:
    """The modules and sub-packages of `harnessgym`, its own `__init__` and `__main__` not among them."""
    paths = (root / "harnessgym").iterdir()
    return sorted(
        path.stem
        for path in paths
        if path.name[0] != "_" and (path.suffix == ".py" or any(path.glob("*.py")))
    )


def _length(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def _public(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[Function, str]]:
    for child in node.body:
        if isinstance(child, Function | ast.ClassDef) and not child.name.startswith("_"):
            if isinstance(child, ast.ClassDef):
                yield from _public(child, f"{prefix}{child.name}.")
            else:
                yield child, prefix + child.name
