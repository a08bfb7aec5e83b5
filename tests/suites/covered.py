"""Which test file covers each module: one of its name, or the one that `tests/coverage.toml` names.

    python -m tests.suites.covered            what is wrong; exits with 1 if anything is
    python -m tests.suites.covered --write    also update the table: drop modules that are gone, propose tests for new ones

A test file of a module's name is `test_NAME.py` or, with its folder, `test_dialect_chat.py` for
`proxies/dialects/chat.py`. It imports the module or lies in the folder of `tests/` that mirrors the module's. The table
may name a folder, which stands for the modules in it. A test file that the table names must lead to the module: through
its imports and those of its conftests and helpers, and through modules that load others by a file's or a package's name.
"""

import argparse
import ast
import math
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.suites.house.imports import all_imports, imports_of
from tests.suites.house.source import PACKAGES, ROOT, Function, Module, modules_of_tests, package_modules

TABLE = "tests/coverage.toml"
_DOTTED = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
_HEAD = """\
# Modules without a test file of their name, and the test file that covers each: `python -m tests.suites.covered`.
# A folder stands for the modules in it that have no line of their own.

"""


@dataclass(frozen=True)
class TestFile:
    """A file of tests and the project's modules that it leads to."""

    __test__ = False
    module: Module
    distances: Mapping[str, int] = field(repr=False)
    """By module name: 0 if the file, a helper or a conftest imports it, 1 if one of those modules does, and so on."""
    imported: frozenset[str] = field(repr=False)
    """The modules that the file itself imports or mentions."""

    @property
    def path(self) -> str:
        """Relative to the project's root."""
        return self.module.path

    def leads_to(self, module: Module) -> bool:
        """Whether the module can be reached from it."""
        return module.name in self.distances


class Coverage:
    """The modules, the test files, and the table."""

    def __init__(self, root: Path = ROOT) -> None:
        modules = package_modules(root)
        self.modules = [module for module in modules if _has_code(module)]
        self.tests = _test_files(modules, modules_of_tests(root))
        path = root / TABLE
        self.table: dict[str, str] = tomllib.loads(path.read_text()) if path.exists() else {}

    def named(self, module: Module) -> str | None:
        """The test file that the table names for a module, or for its folder if no file has the module's name."""
        if module.path in self.table or self.own(module) is not None:
            return self.table.get(module.path)
        folders = [folder for folder in self.table if folder.endswith("/") and module.path.startswith(folder)]
        return self.table.get(max(folders, key=len, default=""))

    def own(self, module: Module) -> str | None:
        """The test file of the module's name; None if there is none."""
        folder, _, _ = module.path.rpartition("/")
        plural = folder.rpartition("/")[2]
        prefixes = ("", f"{plural}_", f"{plural.removesuffix('s')}_", f"{plural.removesuffix('ies')}y_")
        names = {f"test_{prefix}{_stem(module)}.py" for prefix in prefixes}
        for path, test in self.tests.items():
            place, _, name = path.rpartition("/")
            if name in names and (place == f"tests/{folder}" or module.name in test.imported):
                return path
        return None

    def problems(self) -> list[str]:
        """What is wrong, one sentence each."""
        out = []
        for module in self.modules:
            path = self.named(module)
            if path is None and self.own(module) is None:
                out.append(f"{module.path} has no test file of its name and no line in {TABLE}.")
            elif path is not None and path in self.tests and not self.tests[path].leads_to(module):
                out.append(f"{module.path}: {path} does not lead to it.")
        known = {module.path for module in self.modules}
        for key, path in self.table.items():
            if key not in known and not (key.endswith("/") and any(each.startswith(key) for each in known)):
                out.append(f"{TABLE} names {key}, which is not there or has no code.")
            if path not in self.tests:
                out.append(f"{TABLE} names {path}, which is no test file.")
        return out

    def repaired(self) -> dict[str, str]:
        """The table without what is gone or has a test file of its name, and with proposals for what is missing."""
        known = {module.path for module in self.modules}
        folders = {key: path for key, path in self.table.items() if key.endswith("/") and path in self.tests}
        out = {key: path for key, path in folders.items() if any(each.startswith(key) for each in known)}
        for module in self.modules:
            path = self.table.get(module.path)
            if path is not None and path in self.tests and self.own(module) is None:
                out[module.path] = path
            elif self.own(module) is None and not any(module.path.startswith(folder) for folder in out):
                proposal = self._proposal(module)
                if proposal is not None:
                    out[module.path] = proposal
        return dict(sorted(out.items()))

    def _proposal(self, module: Module) -> str | None:
        """The test file that most likely covers a module."""
        scores = {
            path: _score(test, module) for path, test in self.tests.items() if module.name in test.distances
        }
        return max(scores, key=lambda path: scores[path], default=None)


def main(arguments: list[str] | None = None) -> int:
    """Print what is wrong. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.covered", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--write", action="store_true", help="update the table first; read what it proposes")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    options = parser.parse_args(arguments)
    coverage = Coverage(options.root)
    if options.write:
        table = coverage.repaired()
        for key in sorted(table.keys() | coverage.table.keys()):
            if table.get(key) != coverage.table.get(key):
                sys.stdout.write(f"{key}: {coverage.table.get(key)} -> {table.get(key)}\n")
        (options.root / TABLE).write_text(
            _HEAD + "".join(f'"{key}" = "{path}"\n' for key, path in table.items())
        )
        coverage.table = table
    problems = coverage.problems()
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return int(bool(problems))


def _test_files(modules: Iterable[Module], files: Iterable[Module]) -> dict[str, TestFile]:
    """By path, the files named `test_*.py`."""
    modules = list(modules)
    by_path = {file.path: file for file in files}
    names = {module.name for module in modules}
    helpers = {file.name: file.path for file in by_path.values()}
    mentioned = {path: _mentions(file, names | helpers.keys()) for path, file in by_path.items()}
    used = {path: {helpers[name] for name in found & helpers.keys()} for path, found in mentioned.items()}
    graph = _graph(modules)
    out = {}
    for path, file in by_path.items():
        if path.rpartition("/")[2].startswith("test_"):
            near = _distances(used, [path, *_conftests(path, by_path)])
            distances = _distances(graph, {name for other in near for name in mentioned[other] & names})
            out[path] = TestFile(file, distances, frozenset(mentioned[path] & names))
    return out


def _mentions(file: Module, names: set[str]) -> set[str]:
    """The modules that a file imports, or whose names or paths stand in its strings."""
    out = {each.imported for each in imports_of(file, names)}
    for text in _strings(file):
        dotted = [*_DOTTED.findall(text), *_DOTTED.findall(text.replace("/", "."))]
        program = f"{text}.__main__"  # what `python -m` is given
        out |= {program, *(name.removesuffix(".py") for name in dotted)} & names
    return out


def _graph(modules: Sequence[Module]) -> dict[str, set[str]]:
    """What each module imports, or loads by a name in a string if nobody imports it.

    Such a name is `server.py`, `forkserver.server`, `tracing`, `harnessgym_vllm.Weights`, or a package's and a dot.
    """
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for each in all_imports(modules):
        graph[each.importer].add(each.imported)
    imported = {name for names in graph.values() for name in names}
    patterns = {module.name: _loaded_as(module) for module in modules if module.name not in imported}
    for module in modules:
        text = "\n".join(_strings(module))
        family, _, _ = module.name.partition(".")
        own = (name for name in patterns if name.startswith(f"{family}."))
        graph[module.name] |= {name for name in own if _loads(text, name, patterns[name])}
    return graph


def _loads(text: str, name: str, pattern: re.Pattern[str]) -> bool:
    """Whether the pattern of `_loaded_as` finds a module's name. Most texts do not even hold its last word."""
    package, _, stem = name.rpartition(".")
    return (stem in text or f"{package}." in text) and pattern.search(text) is not None


def _loaded_as(module: Module) -> re.Pattern[str]:
    package, _, stem = module.name.rpartition(".")
    folder = package.rpartition(".")[2]
    whole = rf"^{stem}(\.[A-Z]\w+)?$|^{re.escape(package)}\.$"
    return re.compile(rf"\b{stem}\.py\b|\b{folder}\.{stem}\b|{whole}", re.MULTILINE)


def _strings(module: Module) -> list[str]:
    return [
        node.value for node in module.nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _distances(graph: Mapping[str, Iterable[str]], start: Iterable[str]) -> dict[str, int]:
    """How many edges each node is away from the nearest start."""
    out = dict.fromkeys(start, 0)
    waiting = list(out)
    for name in waiting:
        for other in graph.get(name, ()):
            if other not in out:
                out[other] = out[name] + 1
                waiting.append(other)
    return out


def _conftests(path: str, files: Mapping[str, Module]) -> list[str]:
    parts = path.split("/")[:-1]
    places = ["/".join([*parts[:depth], "conftest.py"]) for depth in range(1, len(parts) + 1)]
    return [place for place in places if place in files]


def _score(test: TestFile, module: Module) -> float:
    """How likely a test file covers a module: near in imports and in the tree, similar words, not about much else."""
    folder, _, _ = module.path.rpartition("/")
    place, _, name = test.path.rpartition("/")
    words = set(re.findall(r"[a-z]+", module.path.partition("/")[2].removesuffix(".py")))
    shared = len(words & set(re.findall(r"[a-z]+", name)))
    public = {
        node.name
        for node in module.tree.body
        if isinstance(node, ast.ClassDef | Function) and node.name[0] != "_"
    }
    used = sum(re.search(rf"\b{each}\b", test.module.text) is not None for each in public)
    nearness = 12 * (module.name in test.imported) - 3 * test.distances[module.name]
    return (
        nearness
        + 4 * (place == f"tests/{folder}")
        + 4 * shared
        + 2 * min(used, 4)
        - math.log(1 + len(test.imported))
    )


def _has_code(module: Module) -> bool:
    """Whether there is more than names in it: a package's `__init__` often only lists its members."""
    code = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return not module.path.endswith("/__init__.py") or any(
        isinstance(node, code) for node in module.tree.body
    )


def _stem(module: Module) -> str:
    return module.name.rpartition(".")[2]


if __name__ == "__main__":
    sys.exit(main())
