"""The page of edge cases names tests that are there, and no edge case without a test or a reason."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "sandbox-edges.md").read_text()
GROUPS = ["Processes", "Output", "Files", "Images", "Networks", "Lifecycle", "Grading"]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows():
    """Edge case and what holds it, of every table."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row != ["edge case", "held by"] and set("".join(row)) != {"-"}]


def functions_of(name):
    """The test functions of the one file of that name."""
    (path,) = (ROOT / "tests").rglob(name)
    found = ast.parse(path.read_text()).body
    return {node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED.findall(PAGE)}))
def test_every_test_on_the_page_is_there(file):
    named = {test for other, test in NAMED.findall(PAGE) if other == file}
    assert named - functions_of(file) == set()
    assert all(test.startswith("test_") for test in named)


def test_every_edge_case_has_a_test_or_a_reason():
    assert len(rows()) > 80
    for row in rows():
        assert len(row) == 2, row
        assert NAMED.search(row[1]) or row[1].startswith("not held: "), row
        assert len(re.findall(r"::", row[1])) == len(NAMED.findall(row[1])), row


def test_the_groups_are_all_there():
    assert re.findall(r"^## (.*)$", PAGE, re.MULTILINE) == GROUPS
