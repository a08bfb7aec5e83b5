"""Measures how the code is built, on the syntax trees of the four packages and the tests.

python -m tests.suites.house                  the table
python -m tests.suites.house --limits         the table; exits with 1 if a limit is broken
python -m tests.suites.house --list cycles    the places behind a number
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tests.suites.house import figures, imports, measures
from tests.suites.house.source import ROOT, Location, Module, modules_of_tests, package_modules


def main(arguments: list[str] | None = None) -> int:
    """Print the table or one list. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.house", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--limits", action="store_true", help="exit with 1 if a limit is broken")
    parser.add_argument(
        "--list", choices=sorted(_LISTS), metavar="KIND", help=f"one of {', '.join(sorted(_LISTS))}"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the project's folder")
    options = parser.parse_args(arguments)
    modules = package_modules(options.root)
    if options.list:
        sys.stdout.writelines(f"{line}\n" for line in _LISTS[options.list](modules))
        return 0
    rows = figures.table(modules, modules_of_tests(options.root), options.root)
    sys.stdout.write(figures.markdown(rows))
    broken = [row for row in rows if row.broken]
    if options.limits:
        sys.stdout.writelines(
            f"Broken: {row.name} is {row.text}; the limit is {row.limit}.\n" for row in broken
        )
    return int(options.limits and bool(broken))


def _cycles(modules: Sequence[Module]) -> Iterator[str]:
    """Each cycle, and the imports within it; first those between packages that little ties together."""
    edges = imports.package_imports(modules)
    for names in imports.cycles(edges):
        yield f"cycle of {len(names)}: {', '.join(names)}"
        inside = {edge: found for edge, found in edges.items() if edge[0] in names and edge[1] in names}
        for (importer, imported), found in sorted(inside.items(), key=lambda item: (len(item[1]), item[0])):
            yield f"  {importer} -> {imported} ({len(found)})"
            yield from (f"    {each.path}:{each.line}: {each.imported}" for each in found)


def _duplicates(modules: Sequence[Module]) -> Iterator[str]:
    for name, places in measures.duplicate_classes(modules).items():
        yield f"{name}: {', '.join(f'{place.path}:{place.line}' for place in places)}"


def _tiny(modules: Sequence[Module]) -> Iterator[str]:
    for module, importer in imports.tiny_modules(modules):
        yield f"{module.path} ({len(module.lines)} lines): only {importer} imports it"


def _longest(places: Iterable[tuple[Location, int]], limit: int) -> Iterator[str]:
    for place, length in sorted(places, key=lambda each: -each[1]):
        if length > limit:
            yield f"{place} ({length} lines)"


_LISTS: dict[str, Callable[[Sequence[Module]], Iterable[object]]] = {
    "classes": lambda modules: _longest(measures.classes(modules), measures.LONG_CLASS),
    "comments": measures.comment_lines,
    "cycles": _cycles,
    "duplicates": _duplicates,
    "functions": lambda modules: _longest(measures.functions(modules), measures.LONG_FUNCTION),
    "parallel": measures.parallel_assignments,
    "tiny": _tiny,
    "wide": lambda modules: measures.wide_lines(modules, measures.WIDE),
}


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it
    sys.exit(main())
