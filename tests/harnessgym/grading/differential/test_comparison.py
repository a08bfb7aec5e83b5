"""What two versions of a function answered: which calls count, and how a difference is told."""

import ast

import pytest

from harnessgym.grading.differential.comparison import VersionResults, compare
from harnessgym.grading.differential.functions import Function
from harnessgym.grading.differential.inputs import FunctionCall
from harnessgym.grading.differential.suite import Difference

NODE = ast.parse("def f(): ...").body[0]
F = Function("m.py", ".", "m", "f", 1, NODE)
G = Function("m.py", ".", "m", "g", 1, NODE)
OTHER = Function("n.py", ".", "n", "h", 1, NODE)


def call(*args, seen=True, **kwargs):
    named = {"$dict": [[name, value] for name, value in kwargs.items()]}
    return FunctionCall(list(args), named, seen=seen)


def gave(result=None, after=(), printed=""):
    return {"result": result, "after": list(after), "printed": printed}


def raised(*names, meant=True):
    return {"raised": list(names), "meant": meant, "after": [], "printed": ""}


def results(*answers, **fields):
    cases = {number: answer for number, answer in enumerate(answers) if answer is not None}
    return VersionResults(cases, **fields)


def compared(gold, candidate, *, inputs=None, again=None):
    """The comparison of answers to the same calls of `f`."""
    inputs = inputs or [(F, call(number)) for number in range(len(gold.cases))]
    return compare(inputs, gold, again or gold, candidate)


def difference(gold, candidate):
    """The kind of the only difference; None if there is none."""
    outcome = compared(results(gold), results(candidate))
    assert outcome.inputs == 1
    kinds = [each.kind for each in outcome.differs]
    return kinds[0] if kinds else None


@pytest.mark.parametrize(
    ("gold", "candidate", "kind"),
    [
        (gave(1), gave(1), None),
        (gave(1), gave(2), "result"),
        (gave(1), gave(True), "result"),
        (gave(1.0), gave(1.0 + 1e-12), None),
        (gave(1.0), gave(1.0 + 1e-6), "result"),
        (gave(None), gave(None), None),
        (gave(1, [[1, 2]]), gave(1, [[2, 1]]), "arguments"),
        (gave(1, [1]), gave(2, [2]), "result"),
        (gave(1, printed="a\n"), gave(1, printed="b\n"), "output"),
        (gave(1), gave(1, printed="debugging\n"), None),
        (gave(1, printed="a\n"), gave(1), "output"),
        (raised("KeyError", "LookupError"), raised("KeyError", "LookupError"), None),
        (raised("LookupError"), raised("KeyError", "LookupError"), None),
        (raised("KeyError", "LookupError"), raised("IndexError", "LookupError"), "exception"),
        (raised("KeyError"), gave(None), "exception"),
        (gave(None), raised("KeyError"), "exception"),
        (raised(), raised(), "exception"),
        (gave(1), {"hang": 2}, "hang"),
        (gave(1), {"crash": "it ran out of memory"}, "crash"),
        ({"digest": "ab"}, {"digest": "ab"}, None),
        ({"digest": "ab"}, {"digest": "cd"}, "result"),
        ({"digest": "ab"}, gave(1), "result"),
        (gave(1), {"digest": "ab"}, "result"),
    ],
)
def test_kinds_of_differences(gold, candidate, kind):
    assert difference(gold, candidate) == kind


@pytest.mark.parametrize(
    ("gold", "candidate", "texts"),
    [
        (gave([1, "a"]), gave({"$tuple": [1]}), ('[1, "a"]', '{"$tuple": [1]}')),
        (gave("text"), gave("other"), ("text", "other")),
        (gave(1, [[1]]), gave(1, [[2]]), ("[[1]]", "[[2]]")),
        (gave(1, printed="a"), gave(1, printed="b"), ("a", "b")),
        (gave(1), raised("KeyError"), ("1", "raises KeyError")),
        (raised("KeyError"), gave(1), ("raises KeyError", "1")),
        (raised("KeyError"), raised(), ("raises KeyError", "raises something")),
        (gave(1), {"hang": 2}, ("1", "no end within 2 s")),
        (gave(1), {"crash": "it ended the interpreter"}, ("1", "it ended the interpreter")),
        ({"digest": "ab"}, {"digest": "cd"}, ("something long", "something long")),
    ],
)
def test_both_outcomes_are_shown(gold, candidate, texts):
    (only,) = compared(results(gold), results(candidate)).differs
    assert (only.gold, only.candidate) == texts


def test_arguments_are_shown_as_source_code():
    inputs = [(F, call(1, {"$tuple": ["a"]}, key={"$set": [2]}))]
    (only,) = compared(results(gave(1)), results(gave(2)), inputs=inputs).differs
    assert only == Difference("m.f", "result", "(1, ('a',), key={2})", "1", "2")


def test_a_method_is_shown_with_what_its_object_was_made_from():
    inputs = [(F, FunctionCall([3], {"$dict": []}, new={"args": [1, 2], "kwargs": {"$dict": []}}))]
    (only,) = compared(results(gave(1)), results(gave(2)), inputs=inputs).differs
    assert only.arguments == "on one made with (1, 2): (3)"


def test_long_values_and_arguments_are_cut():
    inputs = [(F, call("x" * 1_000))]
    (only,) = compared(results(gave("y" * 1_000)), results(gave(["z" * 1_000])), inputs=inputs).differs
    assert (len(only.arguments), only.gold, len(only.candidate)) == (300, "y" * 300, 300)


def test_a_value_nested_too_deep_is_only_named():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    (only,) = compared(results(gave(1)), results(gave(deep))).differs
    assert only.candidate == "something very deep"


def test_a_function_that_is_unsteady_on_gold_is_not_compared_at_all():
    inputs = [(F, call(1)), (F, call(2)), (G, call(1))]
    gold = results(gave(1), gave(2), gave(3))
    again = results(gave(1), gave(9), gave(3))
    outcome = compare(inputs, gold, again, results(gave(7), gave(7), gave(3)))
    assert outcome.unstable == {"m.f"}
    assert (outcome.differs, outcome.inputs) == ((), 1)


def test_a_call_without_an_answer_in_one_gold_run_is_left_out():
    outcome = compared(
        results(gave(1), gave(2)),
        results(gave(9), gave(9)),
        again=results(gave(1)),
    )
    assert outcome.inputs == 1
    assert [each.arguments for each in outcome.differs] == ["(0)"]


@pytest.mark.parametrize("end", [{"hang": 2}, {"crash": "it ended"}])
def test_a_call_that_gold_does_not_survive_is_left_out(end):
    assert compared(results(end), results(gave(1))).inputs == 0


def test_an_accidental_error_of_gold_counts_only_for_calls_that_were_seen():
    accident = raised("TypeError", meant=False)
    for seen, counted in ((True, 1), (False, 0)):
        outcome = compared(results(accident), results(gave(1)), inputs=[(F, call(1, seen=seen))])
        assert (outcome.inputs, len(outcome.differs)) == (counted, counted)


def test_an_error_that_gold_raises_on_purpose_counts_for_generated_calls_too():
    inputs = [(F, call(1, seen=False))]
    assert compared(results(raised("ValueError")), results(gave(1)), inputs=inputs).inputs == 1


def test_the_first_missing_answer_of_a_dead_process_is_a_crash_and_later_ones_were_not_tried():
    gold = results(gave(0), gave(1), gave(2))
    outcome = compared(gold, results(gave(0), ended=False))
    assert outcome.inputs == 2
    assert outcome.differs == (Difference("m.f", "crash", "(1)", "1", "it ended the process that called it"),)


@pytest.mark.parametrize("fields", [{"ended": True}, {"ended": False, "hung": True}])
def test_answers_that_a_run_left_out_or_had_no_time_for_are_not_counted(fields):
    outcome = compared(results(gave(0), gave(1)), results(gave(0), **fields))
    assert (outcome.differs, outcome.inputs) == ((), 1)


def test_a_module_that_cannot_be_imported_is_one_difference():
    inputs = [(F, call(1)), (OTHER, call(1))]
    candidate = results(None, gave(2), broken={"m": "SyntaxError: invalid syntax"})
    outcome = compare(inputs, results(gave(1), gave(2)), results(gave(1), gave(2)), candidate)
    assert outcome.differs == (Difference("m", "import", candidate="SyntaxError: invalid syntax"),)
    assert outcome.inputs == 1


@pytest.mark.parametrize(("hung", "how"), [(True, "it does not end"), (False, "it ends the interpreter")])
def test_imports_that_do_not_finish_are_a_difference_of_every_module(hung, how):
    inputs = [(OTHER, call(1)), (F, call(1)), (G, call(1))]
    gold = results(gave(1), gave(1), gave(1))
    outcome = compare(inputs, gold, gold, VersionResults({}, imported=False, ended=False, hung=hung))
    assert outcome.differs == (
        Difference("m", "import", candidate=how),
        Difference("n", "import", candidate=how),
    )
    assert outcome.inputs == 0
