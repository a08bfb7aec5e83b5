"""The parts of second opinions that need no sandbox: values as JSON, inputs from a seed, and which
functions are compared.
"""

import ast
import datetime as dt
import json
import random
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.grading.differential.comparison import read_answers
from harnessgym.grading.differential.functions import Function, differing, is_test
from harnessgym.grading.differential.inputs import FunctionCall, annotated, mutated, shown
from harnessgym.grading.differential.suite import Probe
from harnessgym.grading.matching import same
from harnessgym.grading.runners.encoding import decode, encode
from harnessgym.sandbox import ExecResult

KEYS = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.binary(max_size=4)
SCALARS = (
    KEYS
    | st.floats(allow_nan=False)
    | st.dates()
    | st.timedeltas()
    | st.fractions()
    | st.decimals(allow_nan=False)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.frozensets(KEYS, max_size=3)
        | st.sets(KEYS, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES)
def test_plain_data_comes_back_as_it_was(value):
    sent = json.loads(json.dumps(encode(value, exact=True)))
    back = decode(sent)
    assert back == value
    assert type(back) is type(value)
    assert same(encode(back), encode(value))


@given(VALUES)
def test_equal_values_of_other_types_are_told_apart_as_python_does(value):
    assert same(encode([value]), encode([value]))
    assert not same(encode((value,)), encode([value]))
    assert not same(encode({"a": value}), encode([["a", value]]))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (float("inf"), {"$float": "inf"}),
        (1 << 5_000, {"$integer": hex(1 << 5_000)}),
        (iter([1, 2]), {"$iterator": [1, 2]}),
        (len, {"$opaque": "builtin_function_or_method", "text": "len"}),
        (object(), {"$opaque": "object", "text": ""}),
        (Fraction(1, 3), {"$fraction": "1/3"}),
        (Decimal("1.50"), {"$decimal": "1.50"}),
        (dt.timedelta(1, 2, 3), {"$timedelta": [1, 2, 3]}),
        (PurePosixPath("a/b"), {"$pure_path": "a/b"}),
    ],
)
def test_what_json_has_not_is_tagged(value, encoded):
    assert encode(value) == encoded


def test_objects_are_their_public_attributes():
    class Point:
        def __init__(self):
            self.x, self._cache = 1, {}

    assert encode(Point())["fields"] == {"x": 1}
    for value in (Point(), iter([]), type("Sub", (dict,), {})()):
        with pytest.raises(ValueError, match="cannot be given again"):
            encode([value], exact=True)


def test_what_holds_itself_comes_to_an_end():
    loop = []
    loop.append(loop)
    assert "too deep" in json.dumps(encode(loop))


@given(st.lists(VALUES, min_size=1, max_size=3), st.integers())
def test_inputs_come_from_a_seed_keep_their_types_and_can_be_given(args, seed):
    call = FunctionCall.of(args, {"named": args[0]})
    first, again = [mutated([call], random.Random(seed), 20) for _ in range(2)]
    assert first == again
    assert len({made.key for made in first}) == len(first)
    for made in first:
        assert made.key != call.key
        assert not made.seen
        assert [type(value) for value in decode(made.args)] == [type(value) for value in args]
        assert list(decode(made.kwargs)) == ["named"]


def function(source, name="f"):
    node = next(
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    return Function("m.py", ".", "m", name, 1, node)


def test_literals_in_tests_and_docstrings_are_inputs():
    source = 'def f(a, b=0):\n    """Adds.\n\n    >>> f(1, b=2)\n    3\n    """\n'
    tests = "assert f([1, 2]) == 3\nassert other.f('x') == g(f(n))\nf(*rest)\nf(**rest)\n"
    found = [
        (decode(call.args), decode(call.kwargs)) for call in shown(function(source), [tests, "no python ("])
    ]
    assert found == [([[1, 2]], {}), (["x"], {}), ([1], {"b": 2})]


def test_annotations_are_used_only_where_all_are_known():
    draw = random.Random(1)
    assert annotated(function("def f(a: int, *, b: list[str], c=1): ..."), draw, 4)
    for source in ("def f(a): ...", "def f(a: int, b: Thing): ...", "def f(): ..."):
        assert annotated(function(source), draw, 4) == []


def compared(tmp_path, gold, candidate):
    for name, files in (("gold", gold), ("candidate", candidate)):
        for path, text in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(text)
        (tmp_path / name).mkdir(exist_ok=True)
    found = differing(tmp_path / "gold", tmp_path / "candidate")
    return {(each.root, each.place) for each in found.functions}, found.left_out


BASE = '''\
import re

LIMIT = 3


def plain(a):
    """Says."""
    return a


def uses_limit(a):
    return a[:LIMIT]


def uses_private(a):
    return _private(a)


def _private(a):
    return re.sub("a", "b", a)


def _alone(a):
    return a


class Thing:
    def get(self):
        return self._inner()

    def _inner(self):
        return 1

    def other(self):
        return 2
'''


@pytest.mark.parametrize(
    ("old", "new", "places"),
    [
        ('"""Says."""', '"""Says more."""', set()),
        ("def plain(a):", "def plain(a: int) -> int:", set()),
        ("return a\n\n\ndef uses_limit", "return a + 1\n\n\ndef uses_limit", {"plain"}),
        ("LIMIT = 3", "LIMIT = 4", {"uses_limit"}),
        ('"a", "b", a', '"a", "c", a', {"uses_private"}),
        ("import re", "import regex as re", {"uses_private"}),
        ("def _alone(a):\n    return a", "def _alone(a):\n    return 1", {"_alone"}),
        ("        return 1", "        return 3", {"Thing.get"}),
        ("        return 2", "        return 3", {"Thing.other"}),
    ],
)
def test_functions_that_differ_or_use_what_differs_are_compared(tmp_path, old, new, places):
    assert BASE.count(old) == 1
    found, left_out = compared(
        tmp_path, {"src/pkg/__init__.py": "", "src/pkg/m.py": BASE}, {"src/pkg/m.py": BASE.replace(old, new)}
    )
    assert found == {("src", f"pkg.m.{place}") for place in places}
    assert left_out == {"pkg": "the candidate does not have this file"}


def test_what_cannot_be_compared_is_told(tmp_path):
    gold = {
        "a.py": "def f(): ...\ndef g(): ...\n",
        "b.py": "X = 1\n",
        "c.py": "def f(): ...\n",
        "tests/test_a.py": "1\n",
    }
    candidate = {"a.py": "def f(): ...\n", "b.py": "def (", "tests/test_a.py": "2\n"}
    found, left_out = compared(tmp_path, gold, candidate)
    assert found == set()
    assert left_out == {
        "a.g": "the candidate has no function of this name",
        "b": "the candidate's file is not valid Python, or nested too deep",
        "c": "the candidate does not have this file",
    }
    (tmp_path / "candidate" / "c.py").symlink_to("a.py")
    assert "c" in differing(tmp_path / "gold", tmp_path / "candidate").left_out


def test_tests_are_known_by_their_names():
    assert all(map(is_test, ("test_a.py", "a/b_test.py", "tests/data.py", "conftest.py")))
    assert not any(map(is_test, ("contest.py", "attest/a.py", "latest.py")))


def answers(*lines, cases=2, foreign=0):
    done = ExecResult(0, None, b"", b"", False, False, False, 0.0)
    return read_answers(Probe(lines, foreign, done), cases)


def test_answers_that_no_honest_run_gives_are_named():
    good = {"case": 0, "result": 1, "after": [], "printed": ""}
    began, ended = {"began": True}, {"ended": True}
    assert answers(began, good, ended).forged == ""
    assert "did not write" in answers(began, good, ended, foreign=1).forged
    assert "did not write" in answers(began, good, ended, ended).forged
    assert "twice" in answers(began, good, good, ended).forged
    assert "not asked" in answers(began, {**good, "case": 7}).forged
    assert "no form" in answers(began, {**good, "crash": 1}).forged
    assert (
        "no form"
        in answers(began, {"case": 0, "raised": [1], "meant": True, "after": [], "printed": ""}).forged
    )
    assert "did not start" in answers().forged


def test_code_nested_too_deep_to_be_compared_is_left_out(tmp_path):
    plain, deep = (
        "def total():\n    return 1_500\n",
        f"def total():\n    return {' + '.join(['1'] * 1_500)}\n",
    )
    for folder, text in (("plain", plain), ("deep", deep)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "sums.py").write_text(text)
    found = [
        differing(tmp_path / gold, tmp_path / other) for gold, other in (("plain", "deep"), ("deep", "plain"))
    ]
    assert [each.functions for each in found] == [(), ()]
    assert [dict(each.left_out) for each in found] == [
        {"sums": "the candidate's file is not valid Python, or nested too deep"},
        {"sums": "the gold solution's file is not valid Python, or nested too deep"},
    ]
