"""The control of a judgement: packages whose functions answer from a table, and variants with their twins."""

import ast
from pathlib import Path

from harnessgym.grading.by_value.lookup import LookupControl, tabled, twin_of, with_twins

MODULE = '''\
"""A module."""

from __future__ import annotations

import contextlib


def one():
    """One."""
    return 1


class Kind:
    @property
    def two(self):
        return 2


@contextlib.contextmanager
def three():
    yield 3
'''


def test_functions_are_decorated_next_to_their_bodies():
    tree = ast.parse(tabled("kinds/a.py", MODULE, everywhere=True))
    found = {
        node.name: [ast.unparse(each) for each in node.decorator_list]
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }
    assert found == {
        "one": ["__tabled__('kinds/a.py::one', True)"],
        "two": ["property", "__tabled__('kinds/a.py::Kind.two', True)"],
        "three": ["contextlib.contextmanager"],
    }
    assert ast.get_docstring(tree) == "A module."


def test_a_module_finds_the_table_at_the_top_of_the_workspace():
    assert "'..'" in tabled("kinds/a.py", MODULE, everywhere=False)
    assert "'../..'" in tabled("src/kinds/a.py", MODULE, everywhere=False)
    assert "'.'" in tabled("a.py", MODULE, everywhere=False)
    assert tabled("a.py", "no python", everywhere=False) == ""


def test_each_variant_has_a_twin_that_draws_the_same_forms():
    job = {"files": {"a/test_1.py": "x", "test_2.py": "y", "help.py": "z"}, "seed": "s"}
    job["tests"] = {"a/test_1.py": ["test_b"], "test_2.py": None}
    twins = with_twins(job, ["a/test_1.py"])
    assert twins["tests"] == {"a/test_1.py": ["test_b"], "a/test_1_untabled.py": ["test_b"]}
    assert twins["files"]["a/test_1_untabled.py"] == "x"
    assert twins["files"]["help.py"] == "z"
    assert twins["twins"] == {"a/test_1_untabled.py": "a/test_1.py"}
    assert twin_of("a/test_1.py::test_b[1-2]") == "a/test_1_untabled.py::test_b[1-2]"


def test_variants_of_tests_that_no_table_answers_show_nothing():
    control = LookupControl(Path(), frozenset({"Class::test_x"}), strong=True)
    assert not control.counts(["Class::test_x"])
    assert control.counts(["test_x"])
    assert control.counts(None)
