"""What runs of variants observed: hostile answers are named, and differences are counted as gold is meant."""

import json

import pytest

from harnessgym.grading.by_value.observation import (
    ObservedRun,
    TestObservation,
    differences,
    read_observations,
    stable,
)
from harnessgym.grading.differential.suite import Probe
from harnessgym.sandbox import ExecResult

ANSWER = {"case": "test_a.py::test_x", "groups": [[1, True]], "raised": [], "reached": []}
BEGAN = {"began": True}
ENDED = {"ended": 0}


def run_of(*lines, foreign=0, timed_out=False):
    result = ExecResult(0, None, b"", b"", False, False, timed_out, 1.0)
    return read_observations(Probe(lines, foreign, result))


def seen(*groups, **fields):
    return TestObservation(tuple(map(tuple, groups)), **fields)


def differ(gold, candidate):
    return [each.group for each in differences({"t": gold}, {} if candidate is None else {"t": candidate})]


def test_an_honest_run_is_read():
    run = run_of(BEGAN, ANSWER, ENDED)
    assert run == ObservedRun({"test_a.py::test_x": seen([1, True])})


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({**ANSWER, "more": 1}, "no form"),
        ({"case": "t", "values": []}, "no form"),
        ({**ANSWER, "groups": 3}, "no form"),
        ({**ANSWER, "groups": [3]}, "no form"),
        ({**ANSWER, "reached": [3]}, "no form"),
        ({**ANSWER, "raised": [["call", [], True]]}, "no form"),
        ({**ANSWER, "raised": [["call", ["E"], 1]]}, "no form"),
        ({**ANSWER, "raised": "x"}, "no form"),
        ({**ANSWER, "case": 3}, "no name"),
    ],
)
def test_an_answer_that_the_runner_cannot_have_written_is_forged(answer, why):
    assert why in run_of(BEGAN, answer, ENDED).forged


def test_answering_twice_is_forged():
    assert "two answers" in run_of(BEGAN, ANSWER, ANSWER, ENDED).forged


@pytest.mark.parametrize("imported", [3, None, "a.py::f", {"a.py::f": 1}, [3]])
def test_names_of_functions_that_are_none_are_forged(imported):
    """Whatever stands there, reading it raises nothing."""
    run = run_of(BEGAN, {"imported": imported}, ANSWER, ENDED)
    assert "names of functions" in run.forged
    assert run_of(BEGAN, {"imported": ["a.py::f"]}, ANSWER, ENDED).imported == {"a.py::f"}


def test_garbage_and_a_second_end_are_forged():
    assert run_of(BEGAN, ANSWER, ENDED, foreign=1).forged
    assert run_of(BEGAN, ANSWER, ENDED, ENDED).forged
    assert run_of(ANSWER, ENDED).forged


def test_an_early_end_and_a_timeout_are_told_apart():
    assert not run_of(BEGAN, ANSWER).ended
    assert run_of(BEGAN, ANSWER, timed_out=True).hung


def test_equal_values_agree():
    assert differ(seen([1, 2.0], ["a"]), seen([1, 2.0 + 1e-12], ["a"])) == []


def test_integers_agree_only_if_they_are_equal():
    """However large they are: the tolerance is for what floats lose."""
    assert differ(seen([10**12]), seen([10**12 + 1])) == [0]
    assert differ(seen([{"$tuple": [10**12]}]), seen([{"$tuple": [10**12 + 1]}])) == [0]
    assert differ(seen([1e12]), seen([10**12 + 1])) == []


def test_the_name_of_what_a_candidate_raises_is_shown_in_a_form_that_can_be_stored():
    raising = seen([1], raised=("\ud800\0" + "x" * 10_000,), meant=True)
    (difference,) = differences({"t": seen([1])}, {"t": raising})
    shown = difference.to_dict()["candidate"]
    assert shown.isprintable()
    assert len(shown) < 1_000


@pytest.mark.parametrize(
    "candidate",
    [
        seen([1, True], [3]),
        seen([1, True], [2, 2]),
        seen([1, True]),
        seen([1, True], [2], [5]),
        seen([1, True], [True]),
        seen([1, True], [{"$raised": ["ValueError"], "meant": True}]),
        seen([1, True], [2], raised=("ValueError",), meant=True),
        TestObservation(broken="crash"),
        None,
    ],
)
def test_every_other_answer_differs(candidate):
    assert len(differ(seen([1, True], [2]), candidate)) == 1


def test_an_exception_that_gold_means_must_be_raised():
    gold = seen([{"$raised": ["ValueError", "Exception"], "meant": True}])
    derived = seen([{"$raised": ["DerivedError", "ValueError"], "meant": True}])
    assert differ(gold, derived) == []
    assert differ(gold, seen([3])) == [0]
    assert differ(gold, seen([{"$raised": ["KeyError"], "meant": True}])) == [0]
    assert differ(gold, seen([{"$raised": "ValueError"}])) == [0]
    assert differ(gold, seen([["ValueError"]])) == [0]


def test_where_gold_fails_by_accident_nothing_is_compared():
    gold = seen([1, {"$raised": ["IndexError"], "meant": False}], [2])
    assert differ(gold, seen([1, 7], [2])) == []
    assert differ(gold, seen([5, 7], [2])) == [0]
    assert differ(seen([1], raised=("TypeError",)), seen([1], [8])) == []


def test_how_gold_ends_on_purpose_is_compared():
    gold = seen([1], raised=("ValueError", "Exception"), meant=True)
    assert differ(gold, seen([1], raised=("ValueError",))) == []
    assert differ(gold, seen([1])) == [1]


def test_what_gold_does_not_do_twice_alike_is_left_out():
    first = ObservedRun({"a": seen([1], [2], [3]), "b": seen([1]), "c": TestObservation(broken="hang")})
    second = ObservedRun({"a": seen([1], [9], [3]), "b": seen([1]), "c": seen([1])})
    expected = stable(first, second)
    assert expected == {"a": seen([1], broken="unstable"), "b": seen([1])}
    assert list(differences(expected, {"a": seen([1], [77]), "b": seen([1])})) == []


def test_values_of_any_depth_are_shown_and_compared():
    deep = json.loads("[" * 900 + "]" * 900)
    (difference,) = differences({"t": seen([1])}, {"t": seen([deep])})
    assert difference.to_dict()["test"] == "t"
