"""Second opinions: what behaves as the gold solution does agrees, what only passes its tests is found out."""

import importlib._bootstrap_external
import importlib.util
import shutil
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from harnessgym.errors import SandboxError
from harnessgym.grading.differential.differential_test import opinion_on, second_opinion
from harnessgym.grading.differential.suite import KEY, Opinion, with_opinion
from harnessgym.sandbox import Equipment
from harnessgym.task import Grade, Limits, Solution, Task, TaskStep

pytestmark = [pytest.mark.anyio, pytest.mark.bubblewrap]
LIMITS = Limits(wall_s=60.0, memory_mb=1_024, processes=64, disk_mb=64)
BROKEN = """\
def median(values):
    return sorted(values)[len(values) // 2]
"""
GOLD = '''\
def median(values):
    """The middle one, or the mean of the two in the middle.

    >>> median([1, 2])
    1.5
    """
    if not values:
        raise ValueError("of nothing")
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
'''
TEST = """\
import pytest
from stats import median

def test_even():
    assert median([4, 1, 3, 2]) == 2.5

def test_odd():
    assert median([5, 1, 3]) == 3

def test_nothing():
    with pytest.raises(ValueError):
        median([])
"""
EQUIVALENT = """\
from math import floor


def median(values):
    count = len(values)
    if count < 1:
        raise ValueError("there are no values")
    ordered = list(values)
    ordered.sort()
    middle = floor(count / 2)
    return float(ordered[middle]) if count % 2 else (ordered[middle - 1] + ordered[middle]) / 2
"""
OVERFITTED = """\
def median(values):
    if not values:
        raise ValueError
    if values == [4, 1, 3, 2]:
        return 2.5
    return sorted(values)[len(values) // 2]
"""


def task_of(gold=GOLD, tests=TEST, files=None, **fields):
    check = {"kind": "pytest", "files": ["test_stats.py"], "expect": ["test_stats.py::test_even"]}
    metadata = {"tests": [check], "test_files": {"test_stats.py": tests}} if tests else {"tests": []}
    given = {
        "files": {"stats.py": BROKEN, **(files or {})},
        "solution": Solution({"stats.py": gold}),
        "limits": LIMITS,
    }
    return Task("t", "fix it", metadata=metadata, **{**given, **fields})


def unchecked_bytecode(source):
    """A .pyc file that Python does not compare with its source."""
    code = compile(source, "stats.py", "exec")
    return bytes(importlib._bootstrap_external._code_to_hash_pyc(code, bytes(8), checked=False))


@pytest.fixture
def ask(bubblewrap, tmp_path):
    async def go(task, candidate, **options):
        workspace = tmp_path / "candidate"
        shutil.rmtree(workspace, ignore_errors=True)
        for path, text in {
            **task.files,
            **({"stats.py": candidate} if isinstance(candidate, str) else candidate),
        }.items():
            (workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace / path).write_bytes(text if isinstance(text, bytes) else text.encode())
        return await opinion_on(
            task, workspace, lambda: bubblewrap.open(task.limits, Equipment(proxy=False)), **options
        )

    return go


async def test_an_equivalent_solution_agrees(ask):
    """Its source is what is compared, whatever .pyc file lies beside it."""
    stale = {importlib.util.cache_from_source("stats.py"): unchecked_bytecode(OVERFITTED)}
    opinion = await ask(task_of(), {"stats.py": EQUIVALENT, **stale})
    assert opinion.agrees is True, opinion
    assert opinion.inputs > 20
    assert opinion.functions == ("stats.median",)
    assert (opinion.differs, opinion.suite) == ((), None)


async def test_a_solution_made_for_the_inputs_of_the_tests_is_found_out_each_time(ask):
    opinion, again = [await ask(task_of(), OVERFITTED) for _ in range(2)]
    assert opinion.agrees is False
    assert {difference.function for difference in opinion.differs} == {"stats.median"}
    assert {difference.kind for difference in opinion.differs} == {"result"}
    told = opinion.to_dict()
    assert told["differs"][0].keys() == {"function", "kind", "arguments", "gold", "candidate"}
    assert "[4, 1, 3, 2]" not in [difference["arguments"] for difference in told["differs"]]
    assert again.to_dict() == told


async def test_the_gold_solution_itself_agrees_without_a_call(ask):
    opinion = await ask(task_of(), GOLD)
    assert (opinion.agrees, opinion.inputs) == (True, 0)


PURSE = """\
class Purse:
    def __init__(self, coins):
        self.coins = list(coins)

    def pay(self, price):
        return sum(self.coins) - price


"""


async def test_what_does_the_same_in_other_words_agrees(ask):
    """A method on objects made as the tests make them, a private function that only the public one calls, and
    a function that does not do the same twice, which is left out.
    """
    gold = PURSE + "import os\n\n\ndef token(size):\n    return os.urandom(size).hex()\n\n\n"
    gold += (
        "def _half(value):\n    return value / 2\n\n\ndef median(values):\n    return _half(sum(values))\n"
    )
    tests = "from stats import Purse, median, token\n\ndef test_even():\n    assert median([5, 1]) == 3\n"
    tests += "    assert len(token(4)) == 8\n    assert Purse([5, 2]).pay(3) == 4\n"
    candidate = gold.replace("os.urandom(size).hex()", "'ab' * size")
    candidate = candidate.replace("sum(self.coins) - price", "-price + sum(reversed(self.coins))")
    candidate = candidate.replace("value / 2", "value").replace(
        "_half(sum(values))", "_half(sum(values)) / 2"
    )
    opinion = await ask(task_of(gold, tests), candidate)
    assert opinion.agrees is True, opinion
    assert opinion.functions == ("stats.Purse.pay", "stats.median")
    assert opinion.left_out == {"stats.token": "the gold solution does not do the same twice"}


async def test_ways_to_fail_are_told_apart(ask):
    """Each function fails in its own way: one as a method, one through a private function, and one that
    nothing calls has inputs by its annotations alone.
    """
    names = ("ends", "dies", "raises", "sorts", "says", "hangs", "gives")
    gold = (
        PURSE
        + "def _half(value):\n    return value / 2\n\n\ndef half(values):\n    return _half(sum(values))\n\n\n"
    )
    gold += "def noted(values: list[int]) -> int:\n    return len(values)\n\n\n"
    gold += "".join(f"def {name}(values):\n    return len(values)\n\n\n" for name in names)
    gold = gold.replace("def says(values):\n", "def says(values):\n    print(values)\n")
    calls = "\n".join(f"    assert stats.{name}([2, 1]) == 2" for name in names)
    tests = f"import stats\n\ndef test_even():\n    assert stats.half([5, 1]) == 3\n{calls}\n"
    tests += "    assert stats.Purse([5, 2]).pay(3) == 4\n"
    bodies = {
        "ends": "import os\n    os._exit(3)",
        "dies": "import os, signal\n    os.kill(os.getpid(), signal.SIGSEGV)",
        "raises": "raise KeyError(values)",
        "sorts": "values.sort()\n    return len(values)",
        "says": "print('no')\n    return len(values)",
        "hangs": "import time\n    time.sleep(600)",
        "gives": "return str(len(values))",
    }
    candidate = PURSE.replace("sum(self.coins) - price", "4")
    candidate += "def _half(value):\n    return value / 2 if value == 6 else value\n\n\n"
    candidate += "def half(values):\n    return _half(sum(values))\n\n\ndef noted(values: list[int]) -> int:\n    return 0\n\n\n"
    candidate += "".join(f"def {name}(values):\n    {body}\n\n\n" for name, body in bodies.items())
    opinion = await ask(task_of(gold, tests), candidate, case_s=4.0)
    assert opinion.agrees is False
    first = {difference.function: difference for difference in reversed(opinion.differs)}
    kinds = {function: difference.kind for function, difference in first.items()}
    wanted = {
        "Purse.pay": "result",
        "half": "result",
        "noted": "result",
        "ends": "crash",
        "dies": "crash",
        "raises": "exception",
        "sorts": "arguments",
        "says": "output",
        "hangs": "hang",
        "gives": "result",
    }
    assert kinds == {f"stats.{name}": kind for name, kind in wanted.items()}
    assert set(opinion.functions) == set(kinds)
    shown = {function: difference.candidate for function, difference in first.items()}
    assert (shown["stats.ends"], shown["stats.dies"]) == ("exit code 3", "signal 11")
    assert (shown["stats.raises"], shown["stats.hangs"]) == ("raises KeyError", "no end within 4.0 s")
    assert first["stats.Purse.pay"].arguments.startswith("on one made with ([")


async def test_errors_that_nobody_meant_are_no_difference_on_inputs_that_were_made_up(ask):
    gold = "def median(values):\n    return sorted(values)[len(values) // 2]\n"
    candidate = "def median(values):\n    return sorted(values)[len(values) // 2] if values else None\n"
    tests = "from stats import median\n\ndef test_even():\n    assert median([5, 1]) == 5\n"
    opinion = await ask(task_of(gold, tests), candidate)
    assert opinion.agrees is True
    assert opinion.inputs > 10


async def test_the_developers_own_tests_are_run_as_they_were(ask):
    own = "from stats import median\n\ndef test_three():\n    assert median([9, 1, 2]) == 2\n\n"
    own += "def test_two():\n    assert median([2, 4]) == 3\n"
    files = {"tests/test_own.py": own}
    opinion = await ask(task_of(tests="", files=files), EQUIVALENT)
    assert opinion.agrees is True
    assert opinion.suite.to_dict() == {"verdict": "passed", "passed": 2, "failed": []}
    fooled = {
        "stats.py": OVERFITTED,
        "tests/test_own.py": "def test_two():\n    pass\n",
        "conftest.py": "raise SystemExit",
    }
    opinion = await ask(task_of(files=files), fooled)
    assert opinion.suite.to_dict() == {
        "verdict": "failed",
        "passed": 1,
        "failed": ["tests/test_own.py::test_two"],
    }


FORGED = """\
import os, re
for fd in range(3, 64):
    try:
        os.write(fd, {line!r})
    except OSError:
        pass
"""
REPLACED = """

import sys

frame = sys._getframe()
while "_call_in_fork" not in frame.f_globals:
    frame = frame.f_back
frame.f_globals["_call_in_fork"] = lambda *rest: {"result": 1}
"""


@pytest.mark.parametrize(
    "candidate",
    [
        FORGED.format(line=b"case 0 is fine\n") + EQUIVALENT,
        EQUIVALENT + REPLACED,
    ],
    ids=["a line without the nonce", "an answer of no form"],
)
async def test_forged_answers_do_not_agree(ask, candidate):
    opinion = await ask(task_of(), candidate)
    assert opinion.agrees is False
    assert "answers are none" in opinion.why


@pytest.mark.parametrize(
    ("candidate", "says"),
    [
        ("raise RuntimeError('no')\n", "RuntimeError: no"),
        ("import os\nos._exit(0)\n", "it ends the interpreter"),
    ],
)
async def test_a_candidate_that_cannot_be_imported_differs(ask, candidate, says):
    opinion = await ask(task_of(), candidate + EQUIVALENT)
    assert opinion.agrees is False
    assert [(difference.kind, difference.candidate) for difference in opinion.differs] == [("import", says)]


async def test_without_anything_to_compare_there_is_no_opinion(ask):
    task = task_of(tests="", gold="def median(values):\n    return values[0]\n")
    opinion = await ask(task, "def median(values):\n    return values[-1]\n")
    assert opinion.agrees is None
    assert opinion.left_out == {
        "stats.median": "no inputs are known: neither tests nor docstrings call it with plain values"
    }
    script = task_of(tests="", files={"run.sh": "true"})
    script = replace(script, files={"run.sh": "true"}, solution=Solution({"run.sh": "false"}))
    assert "no Python file" in (await ask(script, {"run.sh": "x"})).why
    assert "no solution" in (await ask(replace(script, solution=None), {"run.sh": "x"})).why
    failing = replace(script, solution=Solution(run=(("sh", "-c", "echo no >&2; exit 3"),)))
    assert "failed: exit status 3: no" in (await ask(failing, {"run.sh": "x"})).why


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (SandboxError("The engine is away."), "The engine is away."),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (MemoryError(), "MemoryError: "),
        (RecursionError("too deep"), "RecursionError: too deep"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_fails_while_an_opinion_is_made_is_no_opinion_and_no_error(tmp_path, error, says):
    @asynccontextmanager
    async def broken():
        raise error
        yield

    opinion = await second_opinion(task_of(), tmp_path, broken, broken)
    assert (opinion.agrees, opinion.why) == (None, says)
    opinion = await opinion_on(task_of(), tmp_path, broken)
    assert (opinion.agrees, opinion.why) == (None, f"The gold solution could not be made: {says}")


async def test_there_is_no_opinion_on_a_task_of_several_steps(ask):
    opinion = await ask(task_of(steps=(TaskStep("one", "fix it"),)), OVERFITTED)
    assert opinion.agrees is None
    assert "several steps" in opinion.why


async def test_an_opinion_lies_beside_a_grade_and_changes_no_reward():
    grade = Grade({"reward": 1.0}, None, {"mode": "separate"})
    told = with_opinion(grade, Opinion(None, "why"))
    assert told.rewards == grade.rewards
    assert told.evidence["mode"] == "separate"
    assert told.evidence[KEY]["why"] == "why"
