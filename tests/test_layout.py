"""The rules of the layout: who imports whom, what importing costs, what is public."""

import ast
import os
import resource
import subprocess
import sys
import tomllib

import pytest

from tests.suites.house.imports import cycles, package_imports
from tests.suites.house.measures import duplicate_classes, root_entries
from tests.suites.house.source import PACKAGES, ROOT, package_modules

LAYOUT = tomllib.loads((ROOT / "tests/layout.toml").read_text())


@pytest.fixture(scope="module")
def project():
    """The modules of the packages."""
    return package_modules()


def imports(path, packages):
    """The modules that a file imports. A file that mentions none of `packages` is not parsed."""
    text = path.read_text()
    tree = ast.parse(text) if any(package in text for package in packages) else ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


def modules(package):
    return [path for path in (ROOT / package).rglob("*.py") if "migrations/versions" not in str(path)]


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_they_may(package):
    forbidden = set(PACKAGES) - {package, "harnessgym"}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(package)
        for name in imports(path, {*forbidden, "torch"})
        if name.split(".")[0] in forbidden or (package != "trainers" and name.split(".")[0] == "torch")
    ]
    assert wrong == []


def test_examples_import_nothing_of_ours():
    for path in (ROOT / "examples").glob("lookup_*.py"):
        assert not {name.split(".")[0] for name in imports(path, PACKAGES)} & set(PACKAGES)


def test_the_packages_of_the_library_form_no_cycle(project):
    """`python -m tests.suites.house --list cycles` names the imports that close one."""
    assert cycles(package_imports(project)) == []


def test_sql_stays_in_the_store(project):
    """Elsewhere a connection is only handed on."""
    wrong = [
        module.path
        for module in project
        if module.path.split("/")[:2] != ["harnessgym", "store"] and has_sql(module)
    ]
    assert wrong == []


def has_sql(module):
    """Whether a module uses SQLAlchemy for more than the type of a connection."""
    for node in module.nodes:
        if isinstance(node, ast.Attribute):
            names = {node.attr} & {"exec_driver_sql"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sqlalchemy":
            names = {alias.name for alias in node.names} - {"Connection"}
        elif isinstance(node, ast.Import):
            names = {alias.name for alias in node.names if alias.name.split(".")[0] == "sqlalchemy"}
        else:
            continue
        if names:
            return True
    return False


def test_the_library_has_the_entries_that_are_listed():
    assert root_entries(ROOT) == sorted(LAYOUT["root"]["entries"])


def test_a_public_class_name_stands_once(project):
    found = set(duplicate_classes(project))
    meant, remaining = set(LAYOUT["classes"]["meant"]), set(LAYOUT["classes"]["remaining"])
    assert found - meant - remaining == set()
    assert (meant | remaining) - found == set(), "These names stand once: remove them from tests/layout.toml."


def test_only_tests_of_the_benchmarks_import_them():
    """What tests and benchmarks both need is in `tests/support/`."""
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("*.py")
        if path.relative_to(ROOT).parts[1] != "benchmarks"
        for name in imports(path, ["benchmarks"])
        if name.split(".")[0] == "benchmarks"
    ]
    assert wrong == []


def test_no_test_folder_is_a_package():
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_docker_is_not_a_package():
    assert not (ROOT / "docker" / "__init__.py").exists()


def test_public_names_are_sorted_and_there():
    import harnessgym

    assert harnessgym.__all__ == sorted(harnessgym.__all__)
    for name in harnessgym.__all__:
        assert getattr(harnessgym, name) is not None


def test_importing_the_library_loads_nothing_heavy():
    heavy = ("torch", "fastapi", "starlette", "alembic", "transformers", "numpy.testing")
    code = f"import sys, harnessgym; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_help_is_quick():
    """Half a second of processor time. Where the machine is busy or slow, what typer's own help takes is the measure."""
    ours = []
    while len(ours) < 5:
        ours.append(_processor_seconds("-m", "harnessgym", "--help"))
        if ours[-1] < 0.5:
            return
    libraries = min(_processor_seconds("-c", "import typer.rich_utils, rich.traceback") for _ in range(3))
    assert min(ours) < 2.5 * libraries


def _processor_seconds(*arguments: str) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True, cwd=ROOT, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
