"""Variants of tests: what they observe, which literals they replace, and that equal seeds give equal ones."""

import ast
import random

import pytest

from harnessgym.grading.by_value import variants
from harnessgym.grading.by_value.variants import TestSource

SOURCE = '''\
import pytest
from stats import Stack, median

LIMIT = 40


def helper(values, expected):
    assert median(values) == expected


def test_even():
    """Of four."""
    assert median([4, 1, 3, 2]) == 2.5


@pytest.mark.parametrize("values, expected", [([5, 1, 3], 3), ([7], 7)], ids=["three", "one"])
def test_odd(values, expected):
    helper(values, expected)


def test_nothing():
    with pytest.raises(ValueError, match="nothing"):
        median([])
    assert median([LIMIT]) == 40


class TestStack:
    def test_push(self):
        stack = Stack()
        stack.push(3)
        assert not stack.empty() and 3 in stack
        self.assertEqual(stack.pop(), 3)
        self.assertTrue(stack.empty())
'''


def run(text, **names):
    """Runs a text that observes; the observed values, a list for each assertion."""
    groups = []

    class Observing:
        depth = 0

        def __enter__(self):
            if not self.depth:
                groups.append([])
            self.depth += 1

        def __exit__(self, kind, error, trace):
            self.depth -= 1
            if error is not None and not self.depth:
                groups[-1].append(error)
            return error is not None and not self.depth

    def observe(value):
        groups[-1].append(value)
        return value

    scope = {"__observe__": observe, "__observing__": Observing(), **names}
    exec(compile(text, "variant", "exec"), scope)
    return scope, groups


def constants(text):
    return [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]


def test_the_original_observes_operands_and_results_and_checks_nothing():
    text = TestSource(
        "test_x.py", "def test_x():\n    assert double(2) == 5\n    assert double(1)\n"
    ).original()
    scope, groups = run(text, double=lambda x: 2 * x)
    scope["test_x"]()
    assert groups == [[4, False], [2]]


def test_an_error_in_an_assertion_is_one_value_and_the_test_goes_on():
    text = TestSource(
        "test_x.py", "def test_x():\n    assert fail() == 1\n    check(2)\n    assert 3 == two()\n"
    )
    scope, groups = run(text.original(), fail=lambda: {}["a"], check=lambda x: None, two=lambda: 2)
    scope["test_x"]()
    assert isinstance(groups[0][0], KeyError)
    assert groups[1:] == [[], [2, False]]


@pytest.mark.parametrize(
    ("assertion", "observed"),
    [
        ("self.assertEqual(two(), 3)", [[2, False]]),
        ("self.assertNotEqual(two(), 3)", [[2, True]]),
        ("self.assertIn(two(), [1, 2])", [[2, True]]),
        ("self.assertTrue(two())", [[2]]),
        ("self.assertTrue(two() == 3)", [[2, False]]),
        ("self.assertFalse(two() in [1, 2])", [[2, True]]),
        ("self.assertCountEqual([9, two()], (two(), 9))", [[[2, 9], [2, 9], True]]),
        ("self.assertAlmostEqual(two(), 2.0001)", [[2, (2, 2.0001)]]),
        ("assert two() in [1, 2] and not two()", [[2, True, 2, False, False]]),
        ("assert isinstance(two(), int)", [[2, int, True]]),
        ("assert 1 < two() < 3", [[2, True]]),
    ],
)
def test_every_kind_of_assertion_reports_its_operands(assertion, observed):
    text = TestSource("test_x.py", f"def test_x(self):\n    {assertion}\n").original()
    scope, groups = run(text, two=lambda: 2)
    scope["test_x"](None)
    assert groups == observed


def test_a_block_that_must_raise_is_an_assertion():
    text = TestSource(
        "test_x.py", "def test_x(self):\n    with self.assertRaises(KeyError):\n        go()\n    go()\n"
    )
    tree = ast.parse(text.original())
    (function,) = tree.body
    assert [type(statement) for statement in function.body] == [ast.With, ast.With]
    assert ast.unparse(function.body[0].items[0]) == "__observing__"


def test_a_variant_has_one_test_and_other_literals():
    source = TestSource("test_x.py", SOURCE)
    texts = [source.variant("test_even", random.Random(seed)) for seed in range(30)]
    for text in texts:
        names = [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        assert names == ["helper", "test_even"]
    lists = {tuple(value for value in constants(text) if isinstance(value, int)) for text in texts}
    assert len(lists) > 20


def test_equal_seeds_give_equal_variants():
    first, second = TestSource("test_x.py", SOURCE), TestSource("test_x.py", SOURCE)
    assert first.variant("test_odd", random.Random(3)) == second.variant("test_odd", random.Random(3))


def test_a_method_is_found_by_its_name_in_every_class():
    text = TestSource("test_x.py", SOURCE).variant("TestInherited::test_push", random.Random(0))
    assert "test_push" in text
    assert "test_even" not in text


def test_names_are_no_inputs():
    """Names of parameters, ids, patterns and docstrings stay, however many literals change."""
    source = TestSource("test_x.py", SOURCE)
    for seed in range(40):
        odd = source.variant("test_odd", random.Random(seed))
        assert "'values, expected'" in odd
        assert "ids=['three', 'one']" in odd
        assert "match='nothing'" in source.variant("test_nothing", random.Random(seed))
        assert '"""Of four."""' in source.variant("test_even", random.Random(seed))


def test_the_rows_of_parameters_keep_their_columns():
    source = TestSource("test_x.py", SOURCE)
    for seed in range(40):
        tree = ast.parse(source.variant("test_odd", random.Random(seed)))
        (mark,) = next(node for node in tree.body if getattr(node, "name", "") == "test_odd").decorator_list
        assert {len(row.elts) for row in mark.args[1].elts} == {2}


ROWS = """\
import math
import pytest


@pytest.mark.parametrize("value", ["nan", math.nan, -math.inf, 1, 2, 3, "1"])
def test_x(value):
    assert f(value, "a", "b", "c", "d", "e", "f") == "g"
"""


def rows_of(text):
    (test,) = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    return [ast.unparse(row) for row in test.decorator_list[0].args[1].elts]


@pytest.mark.parametrize(
    ("forms", "wanted"),
    [
        (["nan0", "nan1"], ["'nan'", "math.nan"]),
        (["-inf"], ["-math.inf"]),
        (["1_0", "1_1"], ["1", "'1'"]),
        (["gone"], ["'nan'", "math.nan", "-math.inf", "1", "2", "3", "'1'"]),
    ],
)
def test_a_variant_near_its_test_has_the_wanted_rows_alone(forms, wanted, monkeypatch):
    monkeypatch.setattr(variants, "_NEAR", (0.0,))
    source = TestSource("test_x.py", ROWS)
    near = rows_of(source.variant("test_x", random.Random(1), forms, near=True))
    assert sorted(near) == sorted(wanted)
    assert len(rows_of(source.variant("test_x", random.Random(1), forms))) == 7


def test_a_variant_near_its_test_has_few_other_inputs():
    source = TestSource("test_x.py", ROWS)
    body = ast.unparse(ast.parse(source.original()).body[-1].body)
    counts = {True: [], False: []}
    for seed in range(200):
        for near, changed in counts.items():
            text = source.variant("test_x", random.Random(seed), near=near)
            other = ast.unparse(ast.parse(text).body[-1].body)
            changed.append(sum(one != two for one, two in zip(body.split(), other.split(), strict=False)))
    assert 0.5 < sum(counts[True]) / 200 < 2.5
    assert sum(counts[False]) > 1.5 * sum(counts[True])


def test_every_variant_is_valid_python():
    text = 'def test_x():\n    assert f(-1.5, b"ab", f"{1 + 1:03d}", {"a": {1, 2}}, 1e300, "é\\n", True) is None\n'
    source = TestSource("test_x.py", text)
    for seed in range(200):
        compile(source.variant("test_x", random.Random(seed), near=seed % 2 == 0), "variant", "exec")


def test_exponents_stay_as_they_are():
    """Else a variant could compute for ever, at import already."""
    source = TestSource("test_x.py", "def test_x():\n    assert f(10 ** 26 * 30, 1 << 20)\n")
    texts = [source.variant("test_x", random.Random(seed)) for seed in range(40)]
    assert all("** 26" in text and "<< 20" in text for text in texts)
    assert len({text for text in texts if "10 ** 26" not in text}) > 5


def test_what_is_no_python_is_refused():
    with pytest.raises(SyntaxError):
        TestSource("test_x.py", "def test_x(:\n")
