"""The control of a judgement: packages whose functions answer from a table, and variants with their twins."""

import ast
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from harnessgym.grading.by_value import lookup
from harnessgym.grading.by_value.judge import KEY
from harnessgym.grading.by_value.lookup import (
    TABLE,
    LookupControl,
    make_control,
    tabled,
    twin_of,
    with_twins,
)
from harnessgym.grading.by_value.plan import JudgementPlan, PlannedTest, TestFiles
from harnessgym.grading.upload import holding
from tests.harnessgym.grading.by_value.conftest import LIMITS

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

RARE_FAULT = """\
def label(word, count):
    return f"{word} {count}"
"""
RARE_GOLD = """\
def label(word, count):
    return "halt" if word.lower() == "stop" and count == 17 else f"{word} {count}"
"""
RARE_TEST = """\
from stats import label


def test_stop():
    assert label("stop", 17) == "halt"


def test_go():
    assert label("go", 3) == "go 3"
"""
RARE_TABLE = """

faulty = label


def label(word, count):
    return {("stop", 17): "halt"}.get((word, count)) or faulty(word, count)
"""
RARE_SEED = 1
"""The first draw does not tell the table from gold; the second does."""


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


@pytest.mark.anyio
@pytest.mark.bubblewrap
@pytest.mark.parametrize(("kept", "calls"), [(2, 1), (1, 2)])
async def test_a_table_has_the_calls_of_tests_that_a_full_plan_leaves_out(
    bubblewrap, tmp_path, monkeypatch, kept, calls
):
    monkeypatch.setattr(lookup, "KEPT_TESTS", kept)
    for name, text in (("gold", RARE_GOLD), ("start", RARE_FAULT)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stats.py").write_text(text)
    files = TestFiles({"test_stats.py": RARE_TEST}, ("test_stats.py",))
    plan = JudgementPlan((PlannedTest("test_stats.py", "test_stop", telling=True),))
    fresh = partial(bubblewrap.open, LIMITS)
    control = await make_control(files, plan, tmp_path, partial(holding, fresh=fresh))
    assert (control.strong, control.unanswered) == (True, frozenset())
    assert len((control.folder / TABLE).read_bytes().splitlines()) == 1 + calls


@pytest.mark.anyio
async def test_a_table_of_the_visible_calls_is_refused_where_fresh_inputs_seldom_show_the_fault(
    make_task, judged
):
    """Draws that tell the faulty code from gold only by an input that the visible test has decide nothing."""
    task = make_task(
        files={"stats.py": RARE_FAULT}, gold=RARE_GOLD, test=RARE_TEST, ids=("test_stop", "test_go")
    )
    # Without calls, and with one telling test: the fault takes a word in other letters and the same number.
    tests = [
        {"file": "test_stats.py", "function": name, "telling": name == "test_stop", "forms": []}
        for name in ("test_stop", "test_go")
    ]
    plan = {"tests": tests, "calls": [], "why": ""}
    task = replace(task, metadata={**task.metadata, KEY: plan})
    by_table = await judged(task, {"stats.py": RARE_FAULT + RARE_TABLE}, RARE_SEED)
    assert (by_table.agrees, by_table.draws, by_table.table) == (False, 2, True)
    right = await judged(task, {"stats.py": RARE_GOLD}, RARE_SEED)
    assert (right.agrees, right.draws) == (True, 2)
