"""Judging by value: what behaves as gold does keeps its reward, and nothing that judged code does forges one."""

import asyncio
import contextlib
import gc
import os
from dataclasses import replace

import pytest

from harnessgym.errors import SandboxError, TaskError
from harnessgym.grading.by_value import judge as judging
from harnessgym.grading.by_value import plan as plans
from harnessgym.grading.by_value.judge import KEY, ByValueJudge
from harnessgym.grading.upload import holding
from harnessgym.provisioning import equipment_of
from harnessgym.task import Grade, Limits, Solution
from tests.harnessgym.grading import graders, shapes
from tests.harnessgym.grading.by_value.conftest import BOTH, BROKEN

pytestmark = pytest.mark.anyio
LIMITS = Limits(wall_s=60.0, memory_mb=1_024, processes=64, disk_mb=64)
EQUIVALENT = """\
import statistics


class Stack:
    def __init__(self, values=()):
        self.values = [*values]

    def push(self, value):
        self.values += [value]

    def pop(self):
        *self.values, last = self.values
        return last


def median(values):
    if len(values) == 0:
        raise ValueError
    return float(statistics.median(values))
"""
EMPTIED = """
try:
    import _pytest.python
    _pytest.python.Function.runtest = lambda self: None
except ImportError:
    pass
"""
TABLE = """
_median = median
def median(values):
    return {(4, 1, 3, 2): 2.5, (4, 8): 6, (5, 1, 3): 3}.get(tuple(values)) or _median(values)

class Stack(Stack):
    def pop(self):
        return self.values.pop() if self.values in ([7, 3, 4], [7, 3]) else self.values.pop(0)
"""
EXPECTING = """
import builtins, sys
def expected():
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_name.startswith("test_"):
        frame = frame.f_back
    return [value for value in frame.f_code.co_consts if type(value) in (int, float)]

def median(values):
    return expected()[0]

class Stack(Stack):
    def pop(self):
        return expected()[0]
"""
EQUAL = """
class Any(float):
    def __eq__(self, other):
        return True
    __hash__ = float.__hash__

_median = median
def median(values):
    return Any(_median(values))

class Stack(Stack):
    def pop(self):
        return Any(super().pop())
"""
ANSWERS = """
import builtins
if hasattr(builtins, "__observe__"):
    observer = builtins.__observing__
    type(observer).observe = lambda self, value: value
    builtins.__observe__ = lambda value: (observer.groups and observer.groups[-1].append(True), value)[1]
"""
JAMS = {
    "garbage": """
import builtins, os
if hasattr(builtins, "__observe__"):
    for descriptor in range(3, 12):
        try:
            os.write(descriptor, b"no answer\\n")
        except OSError:
            pass
""",
    "early exit": """
import builtins, os
if hasattr(builtins, "__observe__"):
    os._exit(0)
""",
    "answers twice": """
import builtins, gc
if hasattr(builtins, "__observe__"):
    for thing in gc.get_objects():
        if type(thing).__name__ == "ForkingReporter":
            say = thing._say
            thing._say = lambda **answer: (say(**answer), say(**answer))
""",
    "names that are none": """
import builtins, gc
if hasattr(builtins, "__observe__"):
    for thing in gc.get_objects():
        if type(thing).__name__ == "ForkingReporter":
            thing._say(imported=3)
""",
    "exits at the end": """
import atexit, builtins, os
if hasattr(builtins, "__observe__"):
    import pytest
    pytest.main = lambda *args, **kwargs: os._exit(0)
    import _pytest.main
    _pytest.main.Session.perform_collect = lambda self, *args, **kwargs: os._exit(0)
    _pytest.main.pytest_runtestloop = lambda session: os._exit(0)
    import _pytest.config
    for thing in __import__("gc").get_objects():
        if type(thing).__name__ == "ForkingReporter":
            thing._say = lambda **answer: os._exit(0)
""",
}
NO_END = """
import builtins, time
if hasattr(builtins, "__observe__"):
    time.sleep(1_000)
"""


def without_tests(*args, **options):
    return {**plans.variant_job(*args, **options), "tests": {}}


@BOTH
async def test_gold_agrees_with_itself(make_task, judged):
    task = make_task()
    judgement = await judged(task, task.solution.files)
    assert judgement.agrees
    assert judgement.tests >= plans._VARIANTS
    assert judgement.assertions >= plans._VARIANTS
    assert judgement.differs == ()
    assert judgement.shown >= 3


async def test_another_right_solution_agrees(make_task, judged):
    for seed in (1, 2):
        judgement = await judged(make_task(), {"stats.py": EQUIVALENT}, seed)
        assert judgement.agrees, judgement.differs


async def test_doing_nothing_differs_whatever_the_seed(make_task, judged):
    for seed in range(3):
        judgement = await judged(make_task(), {}, seed)
        assert not judgement.agrees
        assert len(judgement.differs) >= 3
        assert not judgement.tampered


async def test_the_inputs_are_new_each_time_and_the_same_for_a_seed(make_task, judged, tmp_path):
    task = make_task()
    judge = ByValueJudge(tmp_path)
    new = [await judged(task, {}, judge=judge) for _ in range(2)]
    assert new[0].seed != new[1].seed
    assert new[0].differs != new[1].differs
    again = await judged(task, {}, new[0].seed, judge)
    assert again.differs == new[0].differs


@BOTH
@pytest.mark.parametrize("cheat", ["", EMPTIED, TABLE, EXPECTING, EQUAL, ANSWERS], ids=range(6))
async def test_no_trick_gives_the_values_of_gold(make_task, judged, cheat):
    """Nothing done, empty tests, tables of what tests show, constants of the tests' frames, values equal to
    all, one answer.
    """
    judgement = await judged(make_task(), {"stats.py": make_task().files["stats.py"] + cheat})
    assert not judgement.agrees


@BOTH
@pytest.mark.parametrize("jam", JAMS.values(), ids=JAMS)
async def test_a_candidate_that_jams_the_answers_has_tampered(make_task, judged, jam):
    """Even if it would solve the task."""
    judgement = await judged(make_task(), {"stats.py": make_task().solution.files["stats.py"] + jam})
    assert not judgement.agrees
    assert judgement.tampered


@BOTH
async def test_a_candidate_that_does_not_end_has_tampered(make_task, judged, monkeypatch):
    monkeypatch.setattr(plans, "RUN_S", 8.0)
    judgement = await judged(make_task(), {"stats.py": make_task().solution.files["stats.py"] + NO_END})
    assert "does not end" in judgement.tampered


async def test_the_grade_keeps_a_reward_only_if_the_values_agree(make_task, graded):
    """On the way of every rollout: a forged report passes pytest and gets nothing."""
    task = make_task()
    right = await graded(task, task.solution.files)
    assert (right.rewards["reward"], right.tampered) == (1.0, None)
    assert right.evidence[KEY]["agrees"] is True
    assert right.evidence["integrity"] == right.integrity == "by_value"
    forged = {"stats.py": task.files["stats.py"] + TABLE}
    plain = await graded(make_task(by_value=False), forged)
    assert (plain.rewards["reward"], plain.integrity) == (1.0, "in_process")
    caught = await graded(task, forged)
    assert caught.rewards["reward"] == 0.0
    assert caught.evidence[KEY]["differs"]
    nothing = await graded(task, {})
    assert nothing.rewards["reward"] == 0.0
    assert KEY not in nothing.evidence


async def test_a_run_can_require_it_of_any_task_with_a_solution(make_task, graded):
    task = make_task(by_value=False)
    forged = {"stats.py": task.files["stats.py"] + TABLE}
    assert (await graded(task, forged, required=True)).rewards["reward"] == 0.0
    jammed = {"stats.py": task.solution.files["stats.py"] + JAMS["early exit"]}
    grade = await graded(task, jammed, required=True)
    assert (grade.rewards["reward"], bool(grade.tampered)) == (0.0, True)


async def test_what_gives_other_values_gets_the_least_reward_of_the_task(make_task, graded):
    """Where failing costs something, 0 is a reward: it is judged too, and is not what a wrong solution gets."""
    task = make_task()
    given = {"grade": Grade({"reward": 0.0}), "reward_range": [-1, 0]}
    task = replace(task, grader=f"{graders.__name__}:giving", metadata={**task.metadata, **given})
    wrong = await graded(task, {})
    assert (wrong.rewards["reward"], wrong.tampered) == (-1.0, None)
    assert (await graded(task, task.solution.files)).rewards["reward"] == 0.0


async def test_items_in_another_order_agree_where_tests_compare_them_in_any(make_task, judged):
    test = "import unittest\nfrom stats import kinds\n\n\nclass KindsTest(unittest.TestCase):\n"
    test += "    def test_kinds(self):\n        self.assertCountEqual(kinds([4, 1, 4, 7]), [1, 4, 7])\n"
    faulty = "def kinds(values):\n    return values\n"
    task = make_task(
        gold="def kinds(values):\n    return sorted(set(values))\n",
        test=test,
        ids=("KindsTest::test_kinds",),
        files={"stats.py": faulty},
    )
    # Without calls: those compare what a function returns.
    plan = {
        "tests": [
            {"file": "test_stats.py", "function": "KindsTest::test_kinds", "telling": True, "forms": []}
        ]
    }
    task = replace(task, metadata={**task.metadata, KEY: {**plan, "calls": [], "why": ""}})
    other = {"stats.py": "def kinds(values):\n    return sorted(set(values), reverse=True)\n"}
    judgement = await judged(task, other)
    assert judgement.agrees, judgement.differs
    assert not (await judged(task, {})).agrees


async def test_tests_that_a_patch_adds_are_varied_too(judged):
    """A row in SWE-bench's form: its own tests come with a patch, and the workspace has none that tells."""
    task = replace(shapes.task_of(), limits=LIMITS)
    assert not (await judged(task, {})).agrees
    assert (await judged(task, {"shapes/area.py": shapes.FIXED})).agrees
    table = (
        "\n\nplain = rectangle\ndef rectangle(a, b):\n    return 12 if (a, b) == (3, 4) else plain(a, b)\n"
    )
    assert not (await judged(task, {"shapes/area.py": shapes.AREA + table})).agrees


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"solution": None}, "no solution"),
        ({"solution": Solution({"notes.txt": "a"})}, "no Python function"),
        (
            {"test": "def test_even():\n    assert True\n", "ids": ("test_even",)},
            "differs without the solution",
        ),
    ],
)
async def test_a_task_that_no_value_tells_is_never_a_zero(make_task, judged, fields, why):
    """That is the task's fault: an error that says why, whatever the candidate does."""
    with pytest.raises(TaskError, match=why):
        await judged(make_task(**fields), {"stats.py": EQUIVALENT})


@pytest.mark.bubblewrap
async def test_candidates_that_share_a_seed_share_golds_answers(make_task, bubblewrap, tmp_path):
    """Each further one costs its own run only."""
    task = make_task()
    opened = 0

    def fresh():
        nonlocal opened
        opened += 1
        return bubblewrap.open(task.limits, equipment_of(task, grades=True))

    judge = ByValueJudge(tmp_path, seed=4)
    reference = await judge.reference(task, fresh)
    (tmp_path / "w").mkdir()
    (tmp_path / "w/stats.py").write_text(task.files["stats.py"])
    counts = []
    for _ in range(3):
        opened = 0
        assert not (await judge.judge(task, holding(tmp_path / "w", fresh), fresh)).agrees
        counts.append(opened)
    assert counts == [4, 1, 1]
    assert (await judge.judge(task, reference.opener(fresh), fresh)).seed == 4


async def test_a_candidate_that_hangs_on_inputs_gets_no_reward_and_is_not_called_tampered(
    make_task, judged, monkeypatch
):
    """It answers the visible tests and loops for ever on others: wrong, and honest about it."""
    monkeypatch.setattr(plans, "_CANDIDATE_S", 3.0)
    hangs = make_task().solution.files["stats.py"] + (
        "\n\n_median = median\n\n\ndef median(values):\n"
        "    while len(values) > 1 and values not in ([4, 1, 3, 2], [4, 8], [5, 1, 3]):\n        pass\n"
        "    return _median(values)\n"
    )
    judgement = await judged(make_task(), {"stats.py": hangs})
    assert not judgement.agrees
    assert not judgement.tampered
    assert "hang" in {difference.candidate for difference in judgement.differs}


async def test_a_plan_that_cannot_be_read_is_the_tasks_fault(make_task, judged):
    for plan in ({"tests": [{"file": 3}]}, {"tests": [], "calls": []}):
        task = make_task()
        task = replace(task, metadata={**task.metadata, KEY: plan})
        with pytest.raises(TaskError, match="cannot be read"):
            await judged(task, {})
    test = {"file": "test_gone.py", "function": "test_x", "telling": True, "forms": []}
    gone = {"tests": [test], "calls": [], "why": ""}
    task = replace(make_task(), metadata={**make_task().metadata, KEY: gone})
    with pytest.raises(TaskError, match=r"test_gone\.py"):
        await judged(task, {})


async def test_inputs_that_do_not_show_the_fault_are_drawn_again(make_task, judged):
    """A fault that one input in a few shows: no draw that shows nothing decides, whatever the candidate."""
    gold = BROKEN.replace(
        "    return sorted", "    if len(values) == 2:\n        return -1\n    return sorted"
    )
    test = "from stats import median\n\n\ndef test_two():\n    assert median([4, 8]) == -1\n"
    task = make_task(gold=gold, test=test, ids=("test_two",))
    for seed in (1, 2):
        judgement = await judged(task, {}, seed)
        assert judgement.shown >= 1
        assert not judgement.agrees
    assert (await judged(task, {"stats.py": gold}, 1)).agrees


async def test_what_a_candidate_does_in_a_draw_that_shows_nothing_counts(make_task, judged, monkeypatch):
    """Only a reward waits for a draw that tells the initial files from gold. Else a cheat could be an error."""

    async def nothing(*_):
        return 0

    monkeypatch.setattr(judging.ReferenceRuns, "shown", nothing)
    wrong = await judged(make_task(), {}, 3)
    assert not wrong.agrees
    assert (wrong.draws, wrong.shown) == (1, 0)
    jammed = {"stats.py": make_task().solution.files["stats.py"] + JAMS["early exit"]}
    assert (await judged(make_task(), jammed, 3)).tampered


async def test_a_draw_that_can_show_nothing_is_the_tasks_fault(make_task, judged, monkeypatch):
    monkeypatch.setattr(judging, "variant_job", without_tests)
    monkeypatch.setattr(judging, "_DRAWS", 3)
    with pytest.raises(TaskError, match="do not tell the initial files"):
        await judged(make_task(), {"stats.py": EQUIVALENT}, 5)


async def test_a_machine_that_is_too_busy_for_gold_gives_no_verdict(make_task, judged, monkeypatch):
    """Else nothing would be compared, and everything would agree."""
    task = make_task()
    await judged(task, {})  # the plan is made before
    monkeypatch.setattr(plans, "_GOLD_S", 0.0001)
    with pytest.raises(SandboxError, match="too busy"):
        await judged(task, {}, 5)


async def test_a_machine_that_is_too_busy_to_plan_leaves_no_plan(make_task, judged, monkeypatch, tmp_path):
    """Else the task would have no values for as long as this process runs."""
    judge = ByValueJudge(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(plans, "_GOLD_S", 0.0001)
        with pytest.raises(SandboxError, match="too busy to plan"):
            await judged(make_task(), {}, judge=judge)
    assert not (await judged(make_task(), {}, judge=judge)).agrees


@pytest.mark.bubblewrap
@pytest.mark.parametrize("candidate", [{}, {"stats.py": EQUIVALENT}], ids=["wrong", "right"])
async def test_a_candidate_that_keeps_gold_from_ending_in_time_is_judged(
    make_task, bubblewrap, tmp_path, monkeypatch, candidate
):
    """Gold runs beside it. Without a second run alone, the candidate could make its zero an error."""
    monkeypatch.setattr(plans, "_VARIANTS", 4)
    monkeypatch.setattr(plans, "_GOLD_S", 1.0)
    slow = (
        "import os, time\nif os.path.exists('busy'):\n    time.sleep = lambda _, wait=time.sleep: wait(60)\n"
    )
    gold = make_task().solution.files["stats.py"] + "\n_median = median\n\n\ndef median(values):\n"
    gold += "    time.sleep(0)\n    return _median(values)\n\n\nclass Stack(Stack):\n    def pop(self):\n"
    task = make_task(gold=slow + gold + "        time.sleep(0)\n        return super().pop()\n")
    beside = False

    @contextlib.asynccontextmanager
    async def fresh():
        async with bubblewrap.open(task.limits, equipment_of(task, grades=True)) as sandbox:
            if beside:
                await sandbox.write("busy", b"")
            yield sandbox

    judge = ByValueJudge(tmp_path)
    await judge.reference(task, fresh)
    (tmp_path / "w").mkdir()
    for path, text in {**task.files, **candidate}.items():
        (tmp_path / "w" / path).write_text(text)

    @contextlib.asynccontextmanager
    async def open_candidate():
        nonlocal beside
        beside = True
        plain = holding(tmp_path / "w", lambda: bubblewrap.open(task.limits, equipment_of(task, grades=True)))
        async with plain() as sandbox:
            yield sandbox
        beside = False

    judgement = await judge.judge(task, open_candidate, fresh, seed=1)
    assert judgement.agrees == bool(candidate), judgement.differs
    assert judgement.tests >= 4


@pytest.mark.bubblewrap
async def test_gold_is_made_once_and_removed_with_the_judge(make_task, bubblewrap, tmp_path):
    task = make_task()
    opened = 0

    def fresh():
        nonlocal opened
        opened += 1
        return bubblewrap.open(task.limits, equipment_of(task, grades=True))

    judge = ByValueJudge(tmp_path)
    assert (
        len({id(each) for each in await asyncio.gather(*[judge.reference(task, fresh) for _ in "ab"])}) == 1
    )
    made = opened
    await judge.reference(make_task(), fresh)
    assert opened == made
    assert len(os.listdir(tmp_path)) == 1
    del judge
    await asyncio.sleep(0.01)  # the loop lets go of the results
    gc.collect()
    assert os.listdir(tmp_path) == []
