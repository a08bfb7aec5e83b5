"""Checks whether a repository works: which failed imports now resolve, and which tests pytest collects.

Three things that the agent leaves count: folders on `PYTHONPATH`, variables that the task names (both as
the workspace's `env.sh` exports them), and a `.venv`. A module counts only if its file, and the files of
everything that it imports, are byte for byte shipped ones, wherever they are. That is decided on this
machine, among exported files and without importing anything, so no stub, hook, start-up file or compiled
file of the agent's ever runs. The fresh sandbox then imports and collects only shipped code, and the tests
are the shipped ones.
"""

import ast
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import Field

from harnessgym.errors import TaskError
from harnessgym.grading.check import Check, CheckContext, CheckOutcome
from harnessgym.grading.differential.suite import Probe, probe

_LONGEST_SEARCHED = 1 << 20
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
                shipped = self.shipped[module]
                waiting += imported(shipped.text, module if shipped.package else module.rpartition(".")[0])
            waiting += [module.rpartition(".")[0]] * ("." in module)
        return ""

    def _wrong(self, module: str) -> str:
        path = self._find(module)
        wanted = self.shipped.get(module)
        if wanted is None:
            return "" if path is None else f"{module} did not come with the task"
        if path is None:
            return f"{module} was not found"
        same = path.stat().st_size <= _LONGEST_SEARCHED and path.read_bytes() == wanted.text.encode()
        return (
            ""
            if same and (path.name == "__init__.py") == wanted.package
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
    modules = {}
    for path, text in files.items():
        file = PurePosixPath(path)
        if file.suffix == ".py" and file.is_relative_to(root):
            parts = file.relative_to(root).with_suffix("").parts
            package = parts[-1] == "__init__"
            modules[".".join(parts[:-1] if package else parts)] = Shipped(text, package)
    modules.pop("", None)
    return modules


_REPO = "repo"
_ASK = r"""printf '%s\0' "$PWD"; [ ! -f env.sh ] || . ./env.sh >/dev/null 2>&1 </dev/null
for name in PYTHONPATH "$@"; do eval "printf '%s\\0' \"\${$name-}\""; done"""
_LONGEST = 4_096
"""Longest value of a variable, in characters."""
_ROOTS = 32


class Works(Check):
    """A repository in `repo/`, and the imports and tests that must work."""

    kind: Literal["environments.setup_tasks.works:Works"]
    imports: tuple[str, ...] = Field(min_length=1)
    """Modules that the repository's sources import and that cannot be imported at first."""
    tests: tuple[str, ...] = Field(min_length=1)
    """Ids of tests below `repo/tests` that pytest collects if everything works."""
    packages: tuple[str, ...] = ()
    """Shipped folders from which modules are imported."""
    modules: Mapping[str, str] = Field(default_factory=dict)
    """Further modules: dotted name to the shipped file that they must equal. A file named `__init__.py` is a
    package."""
    texts: Mapping[str, str] = Field(default_factory=dict)
    """Further modules that a script generates: dotted name to their text."""
    variables: tuple[str, ...] = ()
    """Environment variables that count."""
    timeout_s: float = Field(120.0, gt=0, le=3_600)

    async def run(self, context: CheckContext) -> CheckOutcome:
        """Runs the check. The facts `imports` and `collected` are from 0 to 1; `part` is their product."""
        if not any(path.startswith("repo/") for path in context.files):
            raise TaskError(
                f"{context.where}: it is only graded as part of the task set `setup`. Name the set, not its "
                "folder."
            )
        repo = context.workspace / _REPO
        if repo.is_symlink() or not repo.is_dir():
            return self._outcome(0.0, 0.0, "there is no folder repo")
        home, env = await self._environment(context)
        paths = _roots(context.workspace, home, env.pop("PYTHONPATH", ""))
        search = Search(tuple(context.workspace / path for path in paths), self._shipped(context.files))
        compiled = _compiled(context.workspace)
        if compiled:
            return self._outcome(
                0.0, 0.0, f"{compiled} is a compiled module, which cannot be compared with what was shipped"
            )
        problems = {module: search.problem(f"import {module}") for module in self.imports}
        tests, broken = self._tests(context.files, search)
        job = {
            "roots": [f"{home}/{path}" for path in paths],
            "modules": [module for module, problem in problems.items() if not problem],
            "files": tests,
        }
        async with context.open_sandbox() as sandbox:
            program = (files("environments.setup_tasks") / "loading.py").read_text()
            run = await probe(sandbox, program, job, self.timeout_s, env=env, cwd=_REPO)
        if not run.began:
            raise TaskError(
                f"{context.where}: the program did not start: {run.result.describe()}. The image needs "
                f"python3."
            )
        return self._counted(run, problems, broken)

    def _counted(self, run: Probe, problems: Mapping[str, str], broken: Sequence[str]) -> CheckOutcome:
        reported_problems = {line["module"]: line["problem"] for line in run.lines if "module" in line}
        problems_by_module = {
            module: problem or reported_problems.get(module, "it does not end")
            for module, problem in problems.items()
        }
        resolved = [module for module, problem in problems_by_module.items() if not problem]
        collected = {line["test"] for line in run.lines if "test" in line} & set(self.tests)
        wrong = [
            *(f"{module}: {problem}" for module, problem in problems_by_module.items() if problem),
            *broken,
        ]
        counts = (
            f"{len(resolved)} of {len(self.imports)} imports, {len(collected)} of {len(self.tests)} tests"
        )
        parts = len(resolved) / len(self.imports), len(collected) / len(self.tests)
        return self._outcome(*parts, "\n".join([counts, *wrong[:4]]))

    def _outcome(self, imports: float, collected: float, detail: str) -> CheckOutcome:
        part = imports * collected
        return CheckOutcome(
            part == 1.0, detail, part=part, facts={"imports": imports, "collected": collected}
        )

    async def _environment(self, context: CheckContext) -> tuple[str, dict[str, str]]:
        """The workspace's path in the sandbox, and the variables that `env.sh` exports.

        Anything else that `env.sh` does ends with the sandbox.
        """
        names = ("PYTHONPATH", *self.variables)
        async with context.open_sandbox() as sandbox:
            asked = await sandbox.exec(["sh", "-c", _ASK, "sh", *self.variables], timeout_s=self.timeout_s)
        home, *values = asked.stdout.decode(errors="replace").split("\0")
        if not home.startswith("/"):
            raise TaskError(
                f"{context.where}: the shell did not start: {asked.describe()}. The image needs sh."
            )
        variables = {
            name: value
            for name, value in zip(names, values, strict=False)
            if value and len(value) <= _LONGEST
        }
        return home, variables

    def _shipped(self, shipped: Mapping[str, str]) -> dict[str, Shipped]:
        modules = {
            module: text for root in self.packages for module, text in modules_below(shipped, root).items()
        }
        modules |= {name: Shipped(text, package=False) for name, text in self.texts.items()}
        return modules | {
            name: Shipped(shipped[path], PurePosixPath(path).name == "__init__.py")
            for name, path in self.modules.items()
        }

    def _tests(self, shipped: Mapping[str, str], search: Search) -> tuple[dict[str, str], list[str]]:
        """The shipped test files that import only shipped modules, and the problems of the others."""
        files = {
            path.removeprefix(f"{_REPO}/tests/"): text
            for path, text in shipped.items()
            if path.startswith("repo/tests/")
        }
        problems = {path: search.problem(text) for path, text in files.items() if path.endswith(".py")}
        wrong = [f"{path}: {problem}" for path, problem in problems.items() if problem]
        return {path: text for path, text in files.items() if not problems.get(path)}, wrong


def _roots(workspace: Path, home: str, pythonpath: str) -> list[str]:
    """The import path as folders relative to the workspace: `repo`, then `PYTHONPATH`, then `.venv`s."""
    named = [os.path.normpath(os.path.join(home, path)) for path in pythonpath.split(":") if path]
    folders = [_REPO, *(os.path.relpath(path, home) for path in named)]
    for packages in sorted(workspace.glob(".venv/lib/python3*/site-packages")):
        folders += [packages.relative_to(workspace).as_posix(), *_linked(packages, home)]
    inside = [
        path for path in dict.fromkeys(folders) if not path.startswith("..") and _is_folder(workspace, path)
    ]
    return inside[:_ROOTS]


def _linked(packages: Path, home: str) -> list[str]:
    """Folders that `.pth` files name, as in editable installs. Code in their lines is not run."""
    folders = []
    for path in sorted(packages.glob("*.pth")):
        if path.is_file() and path.stat().st_size <= _LONGEST:
            lines = path.read_text(errors="replace").splitlines()
            base = os.path.join(home, ".venv", *packages.parts[-3:])
            folders += [
                os.path.relpath(os.path.join(base, line), home)
                for line in lines
                if line and not line.startswith("import")
            ]
    return folders


def _compiled(workspace: Path) -> str:
    """The name of a compiled module without source, or empty. Python might prefer it to a source file.

    Files in `__pycache__` have a second dot in their name and do not count.
    """
    for _, _, names in os.walk(workspace):
        for name in names:
            if name.endswith(".so") or (name.endswith(".pyc") and name.count(".") == 1):
                return name
    return ""


def _is_folder(workspace: Path, path: str) -> bool:
    try:
        return (workspace / path).is_dir()
    except (OSError, ValueError):
        return False
