"""Fresh calls: valid Python that observes, of the same types as the recorded ones, new for each seed."""

import ast
import random

import pytest

from harnessgym.grading.by_value.calls import PlannedCall, fresh_calls, planned
from harnessgym.grading.differential.functions import functions_of
from harnessgym.grading.differential.inputs import FunctionCall

CALLS = (
    PlannedCall("stats", "median", [[1, 2, 3]], {"$dict": []}),
    PlannedCall("stats", "median", [[4.5, -1.0]], {"$dict": []}),
    PlannedCall("stats", "Stack.push", ["a"], {"$dict": []}, {"args": [[1]], "kwargs": {"$dict": []}}),
    PlannedCall("stats", "parse", [{"$datetime": "2020-01-02T03:04:05"}], {"$dict": [["strict", True]]}),
    PlannedCall("stats", "parse", [{"$float": "nan"}], {"$dict": []}),
)


def statements(text):
    """The observed calls, as source."""
    return [
        ast.unparse(node.value.args[0])
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "__observe__"
    ]


def test_every_function_is_called_with_other_arguments():
    made = statements(fresh_calls(CALLS, random.Random(0)))
    for function in ("'median'", "'push'", "'parse'"):
        assert sum(function in call for call in made) >= 3, function
    recorded = "call('stats', [], 'median', None, [[1, 2, 3]], {})"
    assert recorded not in made


def test_equal_seeds_give_equal_calls_and_others_give_others():
    texts = [fresh_calls(CALLS, random.Random(seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_every_seed_gives_valid_python():
    for seed in range(50):
        compile(fresh_calls(CALLS, random.Random(seed)), "calls", "exec")


def test_without_calls_there_is_no_file():
    assert fresh_calls((), random.Random(0)) == ""


def test_a_call_makes_its_object_first():
    (call, *_) = [each for each in statements(fresh_calls(CALLS[2:3], random.Random(0))) if "push" in each]
    assert "['Stack'], 'push', (" in call


@pytest.fixture
def stats(tmp_path):
    (tmp_path / "stats.py").write_text(
        "def median(values): ...\n\nclass Stack:\n    def push(self, value): ...\n"
    )
    return functions_of(tmp_path, "stats.py")


def test_a_plan_keeps_short_calls_of_the_functions_that_are_asked_for(stats):
    short = FunctionCall([1], {"$dict": []})
    long = FunctionCall(["x" * 1_000], {"$dict": []})
    recorded = {("stats.py", "median"): [long, *[short] * 20], ("stats.py", "other"): [short]}
    kept = planned(stats, recorded)
    assert {call.function for call in kept} == {"median"}
    assert 1 <= len(kept) <= 8
    assert all(call.args == [1] and call.module == "stats" for call in kept)
