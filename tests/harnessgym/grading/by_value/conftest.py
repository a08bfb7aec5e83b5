"""A small task that is judged by value, and a way from a candidate's files to its judgement and its grade."""

import shutil

import pytest

from harnessgym.grading.by_value.judge import KEY, ByValueJudge
from harnessgym.grading.grade import judge
from harnessgym.grading.upload import holding, lay
from harnessgym.provisioning import equipment_of
from harnessgym.task import Limits, Solution, Task
from harnessgym.task_setup.workspace_setup import furnish
from tests.harnessgym.grading.conftest import KINDS

LIMITS = Limits(wall_s=60.0, memory_mb=1_024, processes=64, disk_mb=64)
BROKEN = '''\
class Stack:
    """The last that was pushed comes first."""

    def __init__(self, values=()):
        self.values = list(values)

    def push(self, value):
        self.values.append(value)

    def pop(self):
        return self.values.pop(0)


def median(values):
    if not values:
        raise ValueError("of nothing")
    return sorted(values)[len(values) // 2]
'''
GOLD = BROKEN.replace("pop(0)", "pop()").replace(
    "    return sorted(values)[len(values) // 2]",
    "    ordered = sorted(values)\n"
    "    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2",
)
TEST = """\
import pytest
from stats import Stack, median


def test_even():
    assert median([4, 1, 3, 2]) == 2.5
    assert median([4, 8]) == 6


def test_odd():
    assert median([5, 1, 3]) == 3


def test_nothing():
    with pytest.raises(ValueError):
        median([])


def test_stack():
    stack = Stack([7])
    stack.push(3)
    stack.push(4)
    assert stack.pop() == 4
    assert stack.pop() == 3
    assert stack.values == [7]
"""
IDS = ("test_even", "test_odd", "test_nothing", "test_stack")


@pytest.fixture
def make_task():
    def make(gold=GOLD, test=TEST, ids=IDS, by_value=True, **fields):
        check = {
            "kind": "pytest",
            "files": ["test_stats.py"],
            "expect": [f"test_stats.py::{name}" for name in ids],
            "timeout_s": 20,
        }
        metadata = {"tests": [check], "test_files": {"test_stats.py": test}, "score": "all"}
        given = {
            "files": {"stats.py": BROKEN},
            "solution": Solution({"stats.py": gold}),
            "limits": LIMITS,
            "grader": "harnessgym.grading.checklist:verifier",
        }
        metadata = {**metadata, **({KEY: {}} if by_value else {})}
        return Task("t", "fix it", **{**given, "metadata": metadata, **fields})

    return make


BOTH = pytest.mark.parametrize("kind", KINDS, indirect=True)
"""A test that runs in bubblewrap and in Docker. Without it, tests run in bubblewrap alone."""


@pytest.fixture(params=KINDS[:1])
def kind(request):
    """The kind of sandboxes."""
    return request.param


@pytest.fixture
def backend(request, kind):
    """A backend of this kind, shared by the tests of a file."""
    return request.getfixturevalue(kind)


@pytest.fixture(scope="module")
def judges(tmp_path_factory):
    """Judges whose candidates share their inputs, so that gold answers once for many tests."""
    return {kind.id: ByValueJudge(tmp_path_factory.mktemp("gold"), seed=1) for kind in KINDS}


@pytest.fixture
def by_value(judges, kind):
    """The judge for this kind of sandboxes."""
    return judges[kind]


@pytest.fixture
def judged(backend, by_value, tmp_path):
    """Judges a candidate's files by value."""

    async def go(task, files, seed=None, judge=by_value):
        workspace = tmp_path / "candidate"
        shutil.rmtree(workspace, ignore_errors=True)
        for path, text in {**task.files, **files}.items():
            (workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace / path).write_bytes(text if isinstance(text, bytes) else text.encode())

        def fresh():
            return backend.open(task.limits, equipment_of(task, grades=True))

        return await judge.judge(task, holding(workspace, fresh), fresh, seed=seed)

    return go


@pytest.fixture
def graded(backend, by_value, tmp_path):
    """Grades a candidate's files on the way that every rollout takes."""

    async def go(task, files, **options):
        candidate = tmp_path / "left"
        shutil.rmtree(candidate, ignore_errors=True)
        candidate.mkdir()
        for path, text in files.items():
            (candidate / path).parent.mkdir(parents=True, exist_ok=True)
            (candidate / path).write_text(text)

        def fresh():
            return backend.open(task.limits, equipment_of(task, grades=True))

        async with backend.open(task.limits, equipment_of(task)) as sandbox:
            await furnish(task, sandbox)
            await lay(candidate, sandbox)
            return await judge(task, sandbox, fresh, by_value=by_value, **options)

    return go
