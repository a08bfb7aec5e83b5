"""The table: what each measure comes to, and the limits of some."""

import ast
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.suites.house import imports, measures
from tests.suites.house.measures import LONG_CLASS, LONG_FUNCTION, WIDE
from tests.suites.house.source import Module

_LARGEST = 3
"""Classes that are named."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    text: str
    value: float | None = None
    """What the limit is compared with; None where there is no limit."""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def broken(self) -> bool:
        """Whether the value is beyond its limit."""
        if self.value is None:
            return False
        too_much = self.at_most is not None and self.value > self.at_most
        return too_much or (self.at_least is not None and self.value < self.at_least)

    @property
    def limit(self) -> str:
        """The limit, as the table shows it."""
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return "" if self.at_least is None else f"≥ {self.at_least:g}"


def table(modules: Sequence[Module], tests: Sequence[Module], root: Path) -> list[Row]:
    """The rows of the packages' modules and their tests."""
    count = sum(len(module.lines) for module in modules)
    return [
        *_sizes(modules, count),
        *_text(modules, count),
        *_tests(tests, count),
        *_structure(modules, root),
    ]


def markdown(rows: Iterable[Row]) -> str:
    """The rows as a table."""
    return "| | value | limit |\n|---|---|---|\n" + "".join(
        f"| {row.name} | {row.text} | {row.limit} |\n" for row in rows
    )


def _sizes(modules: Sequence[Module], count: int) -> list[Row]:
    files = sorted(len(module.lines) for module in modules)
    functions = sorted(length for _, length in measures.functions(modules))
    over = sum(length > LONG_FUNCTION for length in functions) / len(functions)
    by_length = sorted(measures.classes(modules), key=lambda each: -each[1])
    large = [f"{place.text} {length}" for place, length in by_length if length > LONG_CLASS]
    named = f" ({', '.join(large[:_LARGEST])})" if large else ""
    per_1k = 1000 * len(files) / count
    return [
        Row("files / lines", f"{len(files)} / {count / 1000:.1f}K"),
        Row("files per 1K lines", f"{per_1k:.1f}", per_1k, at_most=7.0),
        Row(
            "file median / p90 / max",
            f"{statistics.median(files):.0f} / {_quantile(files, 0.9)} / {files[-1]}",
        ),
        Row(
            "function mean / p95 / max",
            f"{statistics.mean(functions):.1f} / {_quantile(functions, 0.95)} / {functions[-1]}",
        ),
        Row(f"functions over {LONG_FUNCTION} lines", f"{over:.2%}", 100 * over, at_most=1.0),
        Row(f"classes over {LONG_CLASS} lines", f"{len(large)}{named}"),
    ]


def _text(modules: Sequence[Module], count: int) -> list[Row]:
    documented = [has for _, has in measures.public_functions(modules)]
    headed = [ast.get_docstring(module.tree) is not None for module in modules]
    lines = [line for module in modules for line in module.lines if line.strip()]
    wide = sum(len(line) > 100 for line in lines) / len(lines)
    wider = len(measures.wide_lines(modules, WIDE))
    packed = 1000 * len(measures.parallel_assignments(modules)) / count
    comments = 1000 * len(measures.comment_lines(modules)) / count
    return [
        Row(
            "docstrings: public functions / modules",
            f"{statistics.mean(documented):.0%} / {statistics.mean(headed):.0%}",
        ),
        Row("mean width without indentation", f"{statistics.mean(len(line.strip()) for line in lines):.0f}"),
        Row("lines over 100 columns", f"{wide:.1%}"),
        Row(f"lines over {WIDE} columns", str(wider), wider, at_most=0),
        Row("`a, b = x, y` per 1K lines", f"{packed:.1f}", packed, at_most=2.0),
        Row("comment lines of their own per 1K", f"{comments:.1f}", comments, at_least=5.0),
    ]


def _tests(tests: Sequence[Module], count: int) -> list[Row]:
    each = len(measures.asserts(tests)) / max(len(measures.tests(tests)), 1)
    return [
        Row("test : code", f"{sum(len(module.lines) for module in tests) / count:.2f}"),
        Row("asserts per test", f"{each:.1f}"),
        Row("mock lines", str(len(measures.mock_lines(tests)))),
    ]


def _structure(modules: Sequence[Module], root: Path) -> list[Row]:
    cycles = imports.cycles(imports.package_imports(modules))
    inside = f" ({', '.join(f'{len(each)} packages' for each in cycles)})" if cycles else ""
    return [
        Row("package cycles in harnessgym", f"{len(cycles)}{inside}", len(cycles), at_most=0),
        Row("entries of harnessgym/", str(len(measures.root_entries(root)))),
        Row("public class names that stand more than once", str(len(measures.duplicate_classes(modules)))),
        Row("tiny modules with one importer beside them", str(len(imports.tiny_modules(modules)))),
    ]


def _quantile(ordered: Sequence[int], share: float) -> int:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
