"""Who imports whom: the modules' imports, the graph of `harnessgym`'s packages, its cycles, and modules
with one importer.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.suites.house.source import PACKAGES, Module

_ENTRY_POINT = re.compile(rf"((?:{'|'.join(PACKAGES)})(?:\.\w+)+)(?::\w+)?")
"""A plugin's name as registries hold it: `module:Class`, or the module alone."""
TINY = 60
"""Lines of a module that its only importer could hold."""
_Naming = ast.Import | ast.ImportFrom | ast.Constant
"""What can name a module."""


@dataclass(frozen=True)
class Import:
    """One module imports another one of the project."""

    importer: str
    imported: str
    path: str
    line: int
    late: bool
    """Whether it happens in a function, or a string names the module: not when the importer is imported."""


def imports_of(module: Module, known: Collection[str]) -> Iterator[Import]:
    """The imports of modules that are `known`, `TYPE_CHECKING` included."""
    top = {id(node) for node in _at_the_top(module.tree)}
    for node in module.nodes:
        for name in _names(node, module, known) if isinstance(node, _Naming) else ():
            late = id(node) not in top or isinstance(node, ast.Constant)
            yield Import(module.name, name, module.path, node.lineno, late)  # type: ignore[attr-defined]


def all_imports(modules: Iterable[Module]) -> list[Import]:
    """The imports among these modules."""
    modules = list(modules)
    known = {module.name for module in modules}
    return [each for module in modules for each in imports_of(module, known)]


def package_of(name: str) -> str:
    """The direct sub-package or module of `harnessgym` that a module belongs to; `harnessgym` for its
    `__init__`.
    """
    return name.split(".")[1] if "." in name else name


def package_imports(modules: Iterable[Module]) -> dict[tuple[str, str], list[Import]]:
    """What ties each two direct sub-packages of `harnessgym`: by (importer, imported), the imports at the
    top of modules.
    """
    edges: defaultdict[tuple[str, str], list[Import]] = defaultdict(list)
    for each in all_imports(module for module in modules if module.path.startswith("harnessgym/")):
        importer, imported = package_of(each.importer), package_of(each.imported)
        if importer != imported and not each.late:
            edges[importer, imported].append(each)
    return dict(edges)


def cycles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """The strongly connected components of more than one package, each sorted, the largest first."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for importer, imported in edges:
        graph[importer].add(imported)
    reached = {name: _reached(graph, name) for name in list(graph)}
    components = {
        tuple(sorted(other for other in names if name in reached.get(other, ())))
        for name, names in reached.items()
        if name in names
    }
    return sorted((list(each) for each in components), key=lambda each: (-len(each), each))


def tiny_modules(modules: Iterable[Module]) -> list[tuple[Module, str]]:
    """Modules of at most `TINY` lines with one importer, which lies in the same folder; with that importer.

    A package's `__init__` is no such importer: it lists the package's members.
    """
    modules = list(modules)
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for each in all_imports(modules):
        if each.importer != each.imported:
            importers[each.imported].add(each.importer)
    paths = {module.name: module.path for module in modules}
    return [
        (module, importer)
        for module in modules
        if len(module.lines) <= TINY and not module.path.endswith(("/__init__.py", "/__main__.py"))
        for importer in importers[module.name]
        if len(importers[module.name]) == 1 and _is_neighbour(paths[importer], module.path)
    ]


def _at_the_top(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield child
            yield from _at_the_top(child)


def _names(node: ast.AST, module: Module, known: Collection[str]) -> Iterator[str]:
    """The known modules that an import statement or a plugin's name refers to."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom):
        source = _source(node, module)
        for alias in node.names:
            submodule = f"{source}.{alias.name}"
            if submodule in known or source in known:
                yield submodule if submodule in known else source
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        match = _ENTRY_POINT.fullmatch(node.value)
        if match is not None and match[1] in known and match[1] != module.name:
            yield match[1]


def _source(node: ast.ImportFrom, module: Module) -> str:
    """The module that a `from` names, also a relative one."""
    if not node.level:
        return node.module or ""
    parts = module.path.removesuffix(".py").split("/")[: -node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """What can be reached from a node by one edge or more."""
    reached, waiting = set[str](), list(graph.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph.get(name, ())
    return reached


def _is_neighbour(importer: str, path: str) -> bool:
    return importer.rpartition("/")[0] == path.rpartition("/")[0] and not importer.endswith("/__init__.py")
