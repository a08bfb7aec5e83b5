"""Tasks that are judged by value are checked without any other check in front: their fault must show."""

import pytest

from harnessgym.grading.by_value.judge import KEY
from harnessgym.grading.by_value.plan import JudgementPlan, PlannedTest
from harnessgym.sandboxes.bubblewrap import Bubblewrap, BubblewrapSettings
from harnessgym.task import Solution, Task
from harnessgym.validation.baseline import Baseline, BaselineEntry
from harnessgym.validation.task_check import GOLD, CheckPlan, TaskSetCheck
from harnessgym.validation.value_control import value_weakness
from tests.harnessgym.grading.by_value.conftest import BROKEN, IDS, LIMITS, TEST
from tests.harnessgym.grading.by_value.conftest import GOLD as FIXED

pytestmark = [pytest.mark.anyio, pytest.mark.bubblewrap]
TELLING = JudgementPlan((PlannedTest("test_stats.py", "test_even", telling=True),))
BLIND = JudgementPlan((PlannedTest("test_stats.py", "test_odd", telling=False),))
"""A plan that never looks at the stack."""


def task(name="t", gold=FIXED, expect=IDS, test=TEST, **metadata):
    check = {
        "kind": "pytest",
        "files": ["test_stats.py"],
        "expect": [f"test_stats.py::{each}" for each in expect],
        "timeout_s": 20,
    }
    tests = {"tests": [check], "test_files": {"test_stats.py": test}, "score": "all"}
    return Task(
        name,
        "fix it",
        files={"stats.py": BROKEN},
        solution=Solution({"stats.py": gold}),
        limits=LIMITS,
        grader="harnessgym.grading.checklist:verifier",
        metadata={**tests, **metadata},
    )


def note(name="note"):
    rules = {"kind": "files", "rules": [{"path": "right"}]}
    metadata = {"tests": [rules], "test_files": {}, "score": "all"}
    grader = "harnessgym.grading.checklist:verifier"
    return Task(name, "Write it.", solution=Solution({"right": "1"}), grader=grader, metadata=metadata)


@pytest.fixture
def check(tmp_path):
    async def run(*tasks, **plan):
        backend = Bubblewrap(BubblewrapSettings(workspace_root=tmp_path / "w"))
        book = Baseline(tmp_path / "baseline.json")
        wanted = CheckPlan("bubblewrap", **{"repeats": 1, "seeds": 1, **plan})
        return await TaskSetCheck(backend, book, wanted).run(tasks, jobs=1)

    return run


async def test_each_seed_must_show_the_fault_and_what_is_known_is_not_run_again(check, tmp_path):
    asked = task(**{KEY: TELLING.to_dict()})
    (first,) = await check(asked)
    assert (first.state, first.ran, first.entry.integrity) == ("passed", 3, "by_value")
    assert first.entry.by_value == (first.entry.fewest_differences,) > (0,)
    (known,) = await check(asked)
    assert (known.ran, known.entry) == (0, first.entry)
    (more,) = await check(asked, seeds=2)
    assert (more.ran, more.entry.by_value[:1]) == (1, first.entry.by_value)
    assert Baseline(tmp_path / "baseline.json").of(asked) == more.entry


async def test_a_task_whose_fault_no_fresh_input_shows_fails(check):
    # The tests show it, and so would a forged report of them.
    stack = BROKEN.replace("pop(0)", "pop()")
    test = f"from stats import Stack, median\n{TEST[TEST.index('def test_odd') : TEST.index('def test_nothing')]}"
    test += TEST[TEST.index("def test_stack") :]
    expect = ("test_odd", "test_stack")
    (blind,) = await check(task(gold=stack, expect=expect, test=test, **{KEY: BLIND.to_dict()}), seeds=2)
    assert blind.state == "failed"
    assert "do not tell the initial files from the solution" in blind.entry.problems[GOLD]


async def test_a_task_that_asks_for_it_and_cannot_be_judged_fails(check):
    (unfit,) = await check(task(**{KEY: JudgementPlan(why="Nothing is telling.").to_dict()}))
    assert unfit.state == "failed"
    assert "cannot be judged by value: Nothing is telling." in unfit.entry.problems[GOLD]


async def test_a_second_opinion_is_tried_with_every_solution_only_if_asked_for(check):
    plain = await check(task(), note())
    assert [(each.state, each.ran, each.entry.by_value) for each in plain] == [("passed", 2, None)] * 2
    assert [each.entry.integrity for each in plain] == ["in_process", "by_value"]
    opinions = await check(task(), note(), second_opinion=True)
    assert [each.state for each in opinions] == ["passed", "passed"]
    judged, unjudged = (each.entry for each in opinions)
    assert len(judged.by_value) == 1
    assert judged.fewest_differences > 0
    assert unjudged.by_value.endswith("cannot be judged by value: The solution changes no Python function.")
    assert unjudged.fewest_differences is None
    assert [each.ran for each in await check(task(), note(), second_opinion=True)] == [0, 0]
    assert [each.entry for each in await check(task(), note())] == [judged, unjudged]


def entry(by_value):
    return BaselineEntry(digest="0", state="passed", sandbox="x", by_value=by_value)


async def test_weakness_in_words():
    assert value_weakness(entry(None)) == value_weakness(entry((1, 4))) == ""
    assert value_weakness(entry("It has no tests.")) == "It has no tests."
    assert value_weakness(entry((3, 0))).startswith("1 of 2 seeds of fresh inputs do not show")
