"""What is wrong is told by calls and values alone, as short as it can be, and the same every time."""

from random import Random

import pytest

from environments.swe.problem_statement import statement
from environments.swe.tree import tree

TREE = tree("itsdangerous")


def fact(code, error="AssertionError", message="", **more):
    return {"statement": code, "code": more.pop("before", code), "error": error, "message": message, **more}


def told(*facts):
    text = statement(
        TREE, {f"tests/test_x.py::test_{number}": each for number, each in enumerate(facts)}, Random(0)
    )
    return text and text.split("\n- ", 1)[1]


def test_names_become_their_values_and_the_value_that_came_is_said_first():
    names = {"word": "'axis'", "expected": "'axes'"}
    left, right = fact("assert f(word) == expected"), fact("assert expected == f(word)")
    wanted = "`f('axis')` gives `'axises'`, where `'axes'` is expected."
    assert told({**left, "names": names, "op": "==", "left": "'axises'", "right": "'axes'"}) == wanted
    assert told({**right, "names": names, "op": "==", "left": "'axes'", "right": "'axises'"}) == wanted
    method = fact("self.assertEqual('axes', f(word))", names=names, op="==", left="'axes'", right="'axises'")
    assert told(method) == wanted


@pytest.mark.parametrize(
    ("failure", "wanted"),
    [
        (fact("assert f(1) == 2", "KeyError", "'sep'"), "`f(1)` raises `KeyError` ('sep')."),
        (
            fact("f(1)", "KeyError", "", wanted="ValueError"),
            "`f(1)` raises `KeyError`, where `ValueError` is expected.",
        ),
        (
            fact(
                "with pytest.raises(ValueError):\n    f(n)",
                "Failed",
                "DID NOT RAISE",
                wanted="ValueError",
                names={"n": "3"},
            ),
            "`f(3)` raises nothing, where `ValueError` is expected.",
        ),
        (fact("assert f(1) != 2", op="!=", left="2", right="2"), "`f(1)` gives `2`, which is not expected."),
        (fact("assert not f(1)"), "`f(1)` should be false, and is not."),
        (fact("self.assertFalse(f(1))"), "`f(1)` should be false, and is not."),
        (fact("assert 1 < f(1)"), "`1 < f(1)` should hold, and does not."),
        (fact("assert f(1)"), "`f(1)` should be true, and is not."),
        (
            fact("self.assertIn(3, g())", message="3 not found in [1]"),
            "`self.assertIn(3, g())` does not hold: 3 not found in [1].",
        ),
        (
            fact("assert f(1) == g(1)", op="==", left="1", right="2"),
            "`f(1)` gives `1`, and `g(1)` gives `2`; the two should be equal.",
        ),
        (
            fact(
                "assert p.f == 2",
                op="==",
                left="1",
                right="2",
                locals=["p"],
                before="p = make(1)\nassert p.f == 2",
            ),
            (
                "In this:\n\n  ```python\n  p = make(1)\n  assert p.f == 2\n  ```\n\n  `p.f` gives `1`, "
                "where "
                "`2` is expected."
            ),
        ),
        (
            fact(
                "assert r == 2",
                op="==",
                left="1",
                right="2",
                names={"r": "1", "n": "7"},
                before="r = f(n)\nassert r == 2",
            ),
            (
                "In this, with `n = 7`:\n\n  ```python\n  r = f(n)\n  assert r == 2\n  ```\n\n  `r` is `1`, "
                "where `2` is expected."
            ),
        ),
        (fact("assert not f(1)", "KeyError", "7"), "`f(1)` raises `KeyError` (7)."),
        (
            fact(
                "assert f(n) == 2",
                op="==",
                left="1",
                right="2",
                names={"n": "7"},
                before="n = 7\nassert f(n) == 2",
            ),
            "`f(7)` gives `1`, where `2` is expected.",
        ),
        (
            fact(
                "assert len(r) == 2",
                op="==",
                left="1",
                right="2",
                names={"r": "[1]"},
                before="r = f(n)\nassert len(r) == 2",
            ),
            (
                "In this:\n\n  ```python\n  r = f(n)\n  assert len(r) == 2\n  ```\n\n  `len(r)` gives `1`, "
                "where "
                "`2` is expected."
            ),
        ),
        (
            fact("assert '-'.join(['a', 'b']) == f(1)", op="==", left="'a-b'", right="'ab'"),
            "`f(1)` gives `'ab'`, where `'a-b'` is expected.",
        ),
        (
            fact(
                "assert ''.join('a') == r",
                op="==",
                left="'a'",
                right="'b'",
                names={"r": "'b'"},
                before="r = f(1)\nassert 'a' == r",
            ),
            (
                "In this:\n\n  ```python\n  r = f(1)\n  assert 'a' == r\n  ```\n\n  `r` is `'b'`, where "
                "`'a'` "
                "is "
                "expected."
            ),
        ),
    ],
)
def test_every_way_to_fail_has_its_words(failure, wanted):
    assert told(failure) == wanted


@pytest.mark.parametrize(
    "failure",
    [
        fact(""),
        fact("assert f(1) == ("),
        fact("raise AssertionError(text)"),
        fact("assert p.f == 2", op="==", left="1", right="2", locals=["p"], before=""),
        fact("assert len(r) == 2", op="==", left="1", right="2", names={"r": "[1]"}, locals=["r"], before=""),
        fact("assert f(1) == 2", op="==", left="<f at 0x7f>", right="2"),
        fact("assert f(1) == 2", "OSError", "no file /root/x"),
    ],
)
def test_what_cannot_be_said_plainly_is_not_said(failure):
    assert told(failure) is None


def test_what_the_class_of_a_test_sets_is_said_with_it():
    cached = tree("cachetools")
    facts = {
        "tests/test_ttl.py::TTLTestCacheTest::test_x": fact("self.Cache(1).popitem()", "TypeError"),
        "tests/test_lru.py::LRUCacheTest::test_x": fact("self.Cache[1] = 2", "TypeError"),
    }
    text = statement(cached, facts, Random(0))
    assert "- With `self.Cache = LRUCache`, `self.Cache[1] = 2` raises `TypeError`." in text


def test_a_few_examples_stand_for_many_and_the_subject_is_what_they_call():
    facts = {
        f"tests/test_a.py::test_a[{number}]": fact(
            f"assert Signer('k').sign({number}) == 1", op="==", left="0", right="1"
        )
        for number in range(8)
    }
    text = statement(TREE, facts, Random(0))
    assert text.count("\n- ") == 5
    assert "3 more cases of this kind are wrong too." in text
    assert "`sign`" in text.split("\n")[0]
    assert "test_a" not in text
    assert text == statement(TREE, dict(reversed(facts.items())), Random(0))
