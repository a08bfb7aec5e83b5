"""A pytest check of a real project: its source in a folder of its own, and tests of its files that are not
run.
"""

import pytest

from harnessgym.errors import TaskError
from harnessgym.grading.check import read_checks

pytestmark = pytest.mark.anyio

TESTS = """\
import idna

def test_one():
    assert idna.MINE == 1

def test_one_more():
    assert idna.MINE == 1

def test_broken():
    assert False
"""
IDS = ["test_it.py::test_one", "test_it.py::test_one_more"]


def check(**more):
    return {
        "kind": "pytest",
        "files": ["test_it.py"],
        "expect": IDS,
        "without": ["test_it.py::test_broken"],
        **more,
    }


@pytest.mark.bubblewrap
async def test_sources_come_before_what_is_installed_and_what_is_left_out_is_not_run(
    bubblewrap, grade, make_task
):
    """`idna` is installed with HarnessGym too."""
    task = make_task(check(sources=["src"]), test_files={"test_it.py": TESTS})
    assert (await grade(bubblewrap, task, {"src/idna.py": "MINE = 1\n"})).rewards == {"reward": 1.0}
    assert (await grade(bubblewrap, task, {"src/idna.py": "MINE = 2\n"})).rewards == {"reward": 0.0}
    found = await grade(bubblewrap, task, {"idna.py": "MINE = 1\n"})
    assert found.rewards == {"reward": 0.0}
    assert found.tampered is None


@pytest.mark.bubblewrap
async def test_what_is_left_out_is_left_out_by_its_whole_name(bubblewrap, grade, make_task):
    one = check(sources=["."], expect=IDS[1:], without=["test_it.py::test_broken", IDS[0]])
    task = make_task(one, test_files={"test_it.py": TESTS})
    found = await grade(bubblewrap, task, {"idna.py": "MINE = 1\n"})
    assert found.rewards == {"reward": 1.0}
    assert found.evidence["checks"][0]["tests_passed"] == 1


@pytest.mark.bubblewrap
async def test_without_sources_what_is_installed_comes_first(bubblewrap, grade, make_task):
    task = make_task(check(), test_files={"test_it.py": TESTS})
    assert (await grade(bubblewrap, task, {"idna.py": "MINE = 1\n"})).rewards == {"reward": 0.0}


def test_a_test_that_is_expected_cannot_be_left_out():
    with pytest.raises(
        TaskError, match=r"without: 'test_it.py::test_one' is in `expect` too. Remove it from one"
    ):
        read_checks([check(without=IDS[:1])], {"test_it.py"}, "here")
