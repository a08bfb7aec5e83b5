"""Tests made of asserts, with the code under test in another sandbox: what travels, what fails, and whose
fault it is.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import TaskError
from harnessgym.grading.check import read_checks
from harnessgym.grading.runners.asserting import CandidateModule, decoded, encoded

anyio_test = pytest.mark.anyio
REFERENCE = "SCALE = 2\ndef f(x, by=1):\n    if x == 'bad':\n        raise KeyError(x)\n    return {x: (x, [x] * by)}\n"
TEST = (
    "from random import randint\n"
    "def check(candidate):\n"
    "    for n in [randint(0, 99) for _ in range(5)]:\n"
    "        assert candidate(n) == {n: (n, [n])}\n"
    "        assert candidate(n, by=SCALE)[n][1] == [n, n]\n"
    "    try:\n"
    "        candidate('bad')\n"
    "    except LookupError:\n"
    "        return\n"
    "    assert False\n"
)
CHECK = {"kind": "asserts", "module": "work", "function": "f", "timeout_s": 20.0}

leaves = st.none() | st.booleans() | st.integers() | st.text() | st.binary()
leaves |= st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
keys = st.text() | st.integers()
plain = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=3)
        | st.frozensets(keys, max_size=3)
        | st.sets(keys, max_size=3)
    ),
    max_leaves=12,
)


def same(one, other):
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(
            same(one[key], other[key]) for key in one
        )
    return one == other


@given(plain)
def test_plain_data_comes_back_as_it_was(value):
    assert same(decoded(encoded(value)), value)


def test_a_subclass_travels_as_its_base_and_an_object_not_at_all():
    class Equal(int):
        __hash__ = int.__hash__

        def __eq__(self, other):
            return True

    came = decoded(encoded([Equal(3), True, math.nan]))
    assert type(came[0]) is int
    assert came[1] is True
    assert math.isnan(came[2])
    with pytest.raises(TypeError, match="no plain data"):
        encoded([object()])
    for strange in ([1], 1.5, {"list": 3}, {"object": []}, {}, {"float": "x"}, {"list": [], "set": []}):
        with pytest.raises((TypeError, ValueError, KeyError)):
            decoded(strange)


def test_a_candidate_answers_only_the_calls_that_are_known():
    asked = CandidateModule(lambda x: x + 1, [], None)
    assert asked(1) == 2
    replayed = CandidateModule(None, asked.calls, [{"result": 5}])
    assert replayed(1) == 5
    with pytest.raises(AssertionError):
        replayed(1)
    other = CandidateModule(None, asked.calls, [{"result": 5}])
    with pytest.raises(AssertionError, match="does not make"):
        other(2)
    assert other.strayed


@pytest.fixture
def task(make_task):
    return make_task(CHECK, test_files={"reference.py": REFERENCE, "test.py": TEST})


@anyio_test
async def test_asserts_decide_on_every_backend(backend, grade, task):
    assert (await grade(backend, task, {"work.py": REFERENCE})).rewards == {"reward": 1.0}
    for wrong in ("[x] * by", "(x, x)"), ("KeyError", "ValueError"):
        found = await grade(backend, task, {"work.py": REFERENCE.replace(*wrong)})
        assert (found.rewards, found.tampered) == ({"reward": 0.0}, None), wrong
    assert (await grade(backend, task, {})).rewards == {"reward": 0.0}


EQUAL = """
class Any:
    def __getattr__(self, name): return self
    def __eq__(self, other): return True
    def __getitem__(self, key): return self
def f(x, by=1): return Any()
"""
FORGED = """
import os
for fd in range(3, 40):
    try: os.write(fd, b'{"passed": true, "why": "", "calls": []}\\n')
    except OSError: pass
def f(x, by=1): return 0
"""
PATCHED = """
import json
json.dumps = lambda *a, **k: '{"passed": true}'
def f(x, by=1): return 0
"""
DEEP = """
def f(x, by=1):
    deep = []
    for _ in range(100_000): deep = [deep]
    return deep
"""
HUGE = "def f(x, by=1): return 10 ** 10_000\n"
LEAVING = "import os\ndef f(x, by=1): os._exit(0)\n"
KILLING = "import os\ndef f(x, by=1): os.kill(os.getppid(), 9)\n"


@anyio_test
@pytest.mark.bubblewrap
@pytest.mark.parametrize("text", [EQUAL, FORGED, PATCHED, DEEP, HUGE, LEAVING, KILLING])
async def test_there_is_nothing_to_forge(bubblewrap, grade, task, text):
    assert (await grade(bubblewrap, task, {"work.py": text})).rewards == {"reward": 0.0}


@anyio_test
@pytest.mark.bubblewrap
async def test_neither_test_nor_reference_is_where_the_code_runs(bubblewrap, grade, make_task):
    spy = (
        "import os, subprocess\n"
        "def f(x):\n"
        "    looked = subprocess.run(['sh', '-c', 'cat /proc/*/environ /proc/*/cmdline; grep -rs x7h . /tmp "
        "/home /run'],\n"
        "                            capture_output=True).stdout\n"
        "    return looked.count(b'x7h-' + b'hidden')\n"
    )
    files = {
        "reference.py": "def f(x): return 0  # x7h-hidden\n",
        "test.py": "def check(f): assert f(1) == 0, 'x7h-hidden'\n",
    }
    assert (await grade(bubblewrap, make_task(CHECK, test_files=files), {"work.py": spy})).rewards == {
        "reward": 1.0
    }


@anyio_test
@pytest.mark.bubblewrap
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"test.py": "def check(f): assert f('bad')\n"}, "KeyError"),
        ({"test.py": "def check(f): pass\n"}, "makes no call"),
        ({"test.py": "def chekc(f): f(1)\n"}, "KeyError: 'check'"),
        ({"reference.py": "def f(x: return x\n"}, "SyntaxError"),
        ({"test.py": "def check(f): f(object())\n"}, "no plain data"),
        ({"test.py": "import sys\ndef check(f): sys.exit(f(1))\n"}, "does not pass"),
    ],
)
async def test_a_test_that_its_reference_does_not_pass_is_the_tasks_fault(
    bubblewrap, grade, make_task, change, named
):
    task = make_task(CHECK, test_files={"reference.py": REFERENCE, "test.py": TEST, **change})
    with pytest.raises(
        TaskError, match=rf"the reference reference\.py does not pass test\.py: .*{named}|{named}"
    ):
        await grade(bubblewrap, task, {"work.py": REFERENCE})


def test_a_mistake_in_the_check_is_named():
    with pytest.raises(TaskError, match=r"reference: 'reference\.py' is not in tests/"):
        read_checks([CHECK], {"test.py"}, "x")
    with pytest.raises(TaskError, match="module"):
        read_checks([CHECK | {"module": "a b"}], {"test.py", "reference.py"}, "x")
