"""Finds tests that read a clock, wait, or use threads: on a slow or busy machine their results may differ."""

import ast
import re

from environments.swe.tree import Tree

_WORDS = re.compile(
    r"\b(sleep|now|utcnow|today|perf_counter|monotonic|threading|Thread|timeout|time\.time|timeit)\b"
)


def clocked(tree: Tree) -> frozenset[str]:
    """Ids of such test functions, without parameters. If a class's set-up does so, all its tests count."""
    found: set[str] = set()
    for path in tree.graded:
        text = tree.tests[path]
        _collect(ast.parse(text), text, path, found)
    return frozenset(found)


def _collect(node: ast.AST, text: str, above: str, found: set[str]) -> None:
    children = [
        child for child in ast.iter_child_nodes(node) if isinstance(child, ast.FunctionDef | ast.ClassDef)
    ]
    for child in children:
        where = f"{above}::{child.name}"
        if isinstance(child, ast.ClassDef):
            _collect(child, text, where, found)
        elif _WORDS.search(ast.get_source_segment(text, child) or ""):
            if child.name.startswith("test"):
                found.add(where)
            elif child.name.lower() in ("setup", "setupclass", "setup_method"):
                found |= {f"{above}::{other.name}" for other in children}
