"""Finds the functions that may behave differently in two workspaces, by comparing syntax and names used.

It compares the public functions and methods that both workspaces have under one name, in files that differ. A
function differs if its own syntax differs (docstrings and annotations aside), or if it uses a name of its
module that differs: a private helper, a constant, an import. Private functions are details of the
implementation. They are compared through the public functions that use them; directly only if no public
function does.
"""

import ast
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_MAX_BYTES = 1 << 20
_HIDDEN = (".", "__pycache__", "node_modules", "site-packages")
_UNREADABLE = "the candidate's file is not valid Python, or nested too deep"

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Function:
    """One function that both workspaces have."""

    file: str
    root: str
    """Folder from which its module is imported."""
    module: str
    name: str
    """Name with its classes: `Stack.push`."""
    line: int
    """First line of its code in the gold solution, decorators included."""
    node: Definition = field(compare=False)

    @property
    def place(self) -> str:
        """`module.name`."""
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Compared:
    """The functions to compare, and what cannot be compared."""

    functions: tuple[Function, ...]
    left_out: Mapping[str, str]
    """Dotted name to the reason."""


def differing(gold: Path, candidate: Path) -> Compared:
    """Finds the functions of the gold workspace that may behave differently in the candidate."""
    functions: list[Function] = []
    left_out: dict[str, str] = {}
    for file in python_files(gold):
        ours = _read(gold / file)
        theirs = _read(candidate / file) if _lies_in(candidate, file) else None
        if ours is None or ours == theirs or is_test(file):
            continue
        module = _Module.read(ours)
        other = _Module.read(theirs) if theirs is not None else None
        root, dotted = _imported_as(gold, file)
        if module is None:
            left_out[dotted] = "the gold solution's file is not valid Python, or nested too deep"
            continue
        if other is None:
            left_out[dotted] = "the candidate does not have this file" if theirs is None else _UNREADABLE
            continue
        changed = module.changed(other)
        for name in sorted(changed & module.functions.keys()):
            if name in other.functions:
                node = module.functions[name]
                functions.append(Function(file, root, dotted, name, _first_line(node), node))
            elif not _private(name):
                left_out[f"{dotted}.{name}"] = "the candidate has no function of this name"
    return Compared(tuple(functions), left_out)


def functions_of(folder: Path, file: str) -> tuple[Function, ...]:
    """All functions of a Python file; none if it cannot be parsed."""
    data = _read(folder / file)
    module = None if data is None else _Module.read(data)
    if module is None:
        return ()
    root, dotted = _imported_as(folder, file)
    return tuple(
        Function(file, root, dotted, name, _first_line(node), node) for name, node in module.functions.items()
    )


def changed(gold: Path, start: Path) -> frozenset[str]:
    """The functions of the gold workspace that the solution changes, as `file::name`.

    These are the functions that differ or are new, and those that use another name that does: a constant, a
    class, an import.
    """
    names: set[str] = set()
    for file in python_files(gold):
        ours = _read(gold / file)
        theirs = _read(start / file) if _lies_in(start, file) else None
        if ours is None or ours == theirs or is_test(file):
            continue
        module = _Module.read(ours)
        other = None if theirs is None else _Module.read(theirs)
        if module is not None:
            names |= {f"{file}::{name}" for name in module.changed_itself(other)}
    return frozenset(names)


def python_files(folder: Path) -> Iterator[str]:
    """Relative paths of regular Python files, outside hidden folders and installed packages."""
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN) and name not in _HIDDEN)
        for name in sorted(names):
            path = Path(where, name)
            if name.endswith(".py") and not path.is_symlink() and path.is_file():
                yield path.relative_to(folder).as_posix()


def is_test(file: str) -> bool:
    """Whether a file is part of the developers' tests, by its name or folder."""
    path = PurePosixPath(file)
    named = path.name.startswith("test_") or path.stem.endswith("_test") or path.name == "conftest.py"
    return named or not {"tests", "test", "testing"}.isdisjoint(path.parts[:-1])


@dataclass(frozen=True, slots=True)
class _Module:
    """The names that a module binds: the syntax of each, and the functions among them."""

    bound: Mapping[str, str]
    functions: Mapping[str, Definition]

    @classmethod
    def read(cls, source: bytes) -> "_Module | None":
        """Parses a module. Returns None if it is no Python, or nested too deep."""
        bound: dict[str, str] = {}
        functions: dict[str, Definition] = {}
        try:
            _bind(ast.parse(source), "", bound, functions)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        return cls(bound, functions)

    def changed(self, other: "_Module") -> set[str]:
        """The functions to compare.

        These are the public ones that differ or use a different name, and the different private ones that
        none of them uses.
        """
        different = {name for name, text in self.bound.items() if other.bound.get(name) != text}
        uses = {name: _uses(node, name) for name, node in self.functions.items()}
        reached = _reaching(different, uses)
        public = {name for name in reached if not _private(name)}
        covered = set().union(*(_below(name, uses) for name in public)) if public else set()
        return public | {name for name in reached - public if name not in covered and name in different}

    def changed_itself(self, other: "_Module | None") -> set[str]:
        """The functions that differ or are new, and those that use a different name that is no function."""
        if other is None:
            return set(self.functions)
        different = {name for name, text in self.bound.items() if other.bound.get(name) != text}
        names = different - self.functions.keys()
        uses = {name: _uses(node, name) for name, node in self.functions.items()}
        return {name for name in self.functions if name in different or not uses[name].isdisjoint(names)}


def _bind(tree: ast.AST, prefix: str, bound: dict[str, str], functions: dict[str, Definition]) -> None:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            functions[f"{prefix}{node.name}"] = node
            bound[f"{prefix}{node.name}"] = _shape(node)
        elif isinstance(node, ast.ClassDef):
            heads = [*node.bases, *node.keywords, *node.decorator_list]
            bound[f"{prefix}{node.name}"] = " ".join(ast.dump(head) for head in heads)
            _bind(node, f"{prefix}{node.name}.", bound, functions)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                bound[f"{prefix}{alias.asname or alias.name.split('.')[0]}"] = ast.dump(node)
        elif isinstance(node, ast.stmt):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    bound[f"{prefix}{inner.id}"] = bound.get(f"{prefix}{inner.id}", "") + ast.dump(node)


def _shape(node: Definition) -> str:
    """The syntax of a function without docstrings and annotations."""
    # Work on a copy, because the tree is used again. `ast.unparse` also normalises the formatting.
    copy = ast.parse(ast.unparse(node))
    for inner in ast.walk(copy):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(
            inner, clean=False
        ):
            inner.body = inner.body[1:]
        if isinstance(inner, Definition):
            inner.returns = None
        if isinstance(inner, ast.arg):
            inner.annotation = None
    return ast.dump(copy)


def _uses(node: Definition, name: str) -> set[str]:
    """Names of the module that a function may use, methods of its own class included."""
    plain = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    owner = name.rpartition(".")[0]
    if not owner:
        return plain
    own = {f"{owner}.{inner.attr}" for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
    return plain | own | {owner, f"{owner}.__init__"}


def _reaching(different: set[str], uses: Mapping[str, set[str]]) -> set[str]:
    """Functions that differ, or that use a different name, directly or indirectly."""
    reached = set(different)
    while True:
        more = {name for name, used in uses.items() if name not in reached and not used.isdisjoint(reached)}
        if not more:
            return reached & uses.keys()
        reached |= more


def _below(name: str, uses: Mapping[str, set[str]]) -> set[str]:
    """Everything that a function uses, directly or indirectly."""
    used_names: set[str] = set()
    waiting = [name]
    while waiting:
        for used in uses.get(waiting.pop(), set()) - used_names:
            used_names.add(used)
            waiting.append(used)
    return used_names


def _private(name: str) -> bool:
    """Whether outside code is not meant to call a function.

    `__init__` and similar methods count as private: other methods' calls run them. `__call__` is public.
    """
    own = name.rpartition(".")[2]
    if own.startswith("__") and own.endswith("__"):
        return own in (
            "__init__",
            "__new__",
            "__post_init__",
            "__del__",
            "__getattr__",
            "__getattribute__",
            "__init_subclass__",
        )
    return any(part.startswith("_") for part in name.split("."))


def _first_line(node: Definition) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _imported_as(folder: Path, file: str) -> tuple[str, str]:
    """The folder that must be on the import path, and the module's dotted name there."""
    path = PurePosixPath(file)
    root = path.parent
    while root.parts and (folder / root / "__init__.py").is_file():
        root = root.parent
    dotted = path.relative_to(root).with_suffix("")
    parts = dotted.parts[:-1] if dotted.name == "__init__" and len(dotted.parts) > 1 else dotted.parts
    return root.as_posix(), ".".join(parts)


def _lies_in(folder: Path, file: str) -> bool:
    """Whether a file is a regular file in the folder, reached through no link."""
    path = folder / file
    above = [folder / parent for parent in PurePosixPath(file).parents if parent.parts]
    return path.is_file() and not any(each.is_symlink() for each in (path, *above))


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() and path.stat().st_size <= _MAX_BYTES else None
