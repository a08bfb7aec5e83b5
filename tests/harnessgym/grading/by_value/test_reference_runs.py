"""What counts as evidence that inputs tell the control from gold."""

import asyncio
import contextlib
from functools import partial
from pathlib import Path

import pytest

from harnessgym.grading.by_value import plan as plans
from harnessgym.grading.by_value.lookup import LookupControl
from harnessgym.grading.by_value.observation import ObservedRun, TestObservation
from harnessgym.grading.by_value.plan import TestFiles, original_job
from harnessgym.grading.by_value.reference_runs import ReferenceRuns, contrast_of
from harnessgym.grading.upload import holding
from tests.harnessgym.grading.by_value.conftest import LIMITS

TEST = """\
from stats import double


def test_double():
    assert double(2) == 4
"""
RIGHT = "def double(number):\n    return 2 * number\n"
WRONG = "def double(number):\n    return number\n"
ENDLESS = "def double(number):\n    while True:\n        pass\n"
ENDLESS_IF_BUSY = f"import os\n{RIGHT}if os.path.exists('busy'):\n    " + ENDLESS.replace("\n", "\n    ")
UNIMPORTABLE = "doubled = 4\n"
TABLED, TWIN = "test_a.py::test_x", "test_a_untabled.py::test_x"


def seen(*groups):
    return TestObservation(tuple(map(tuple, groups)))


def contrast(tabled, twin, ended=True):
    answers = {test: answer for test, answer in ((TABLED, tabled), (TWIN, twin)) if answer is not None}
    return contrast_of({TABLED: seen([1], [2], [3])}, ObservedRun(answers, ended=ended))


def test_a_variant_shows_the_fault_where_the_same_assertion_differs_with_the_table_and_without():
    wrong = seen([1], [9], [3])
    assert contrast(wrong, wrong).shown == (TABLED,)
    assert contrast(wrong, seen([1], [8], [3])).shown == (TABLED,)
    assert contrast(wrong, seen([7], [9], [3])).shown == (TABLED,)
    # The table is wrong where the faulty code is right, so a better table would pass.
    for twin in (seen([1], [2], [3]), seen([7], [2], [3]), seen([1], [2], [9])):
        assert contrast(wrong, twin).shown == ()
    assert contrast(seen([1], [2], [3]), wrong).shown == ()
    # Its first wrong answer may be the table's own, and a later one that of both.
    assert contrast(seen([7], [2], [9]), seen([1], [2], [8])).shown == (TABLED,)
    # Behind an early end nothing is known.
    assert contrast(seen([1]), seen([1], [2], [9])).shown == ()
    assert contrast(seen([1]), seen([1])).shown == (TABLED,)


@pytest.mark.parametrize("broken", ["hang", "crash"])
def test_what_the_control_does_not_answer_is_no_evidence_yet(broken):
    silent, wrong = TestObservation(broken=broken), seen([9], [9], [3])
    for pair in ((silent, silent), (silent, wrong), (wrong, silent)):
        assert (contrast(*pair).shown, contrast(*pair).unanswered) == ((), (TABLED,))
    assert contrast(None, None, ended=False).unanswered == (TABLED,)
    assert contrast(None, None).shown == (TABLED,), "the file cannot be imported"
    assert contrast(silent, seen([1], [2], [3])).unanswered == ()


@pytest.fixture
def shown(bubblewrap, tmp_path, monkeypatch):
    """The tests that one run shows, on initial files that are alone or beside a candidate."""
    monkeypatch.setattr(plans, "_CANDIDATE_S", 1.0)
    fresh = partial(bubblewrap.open, LIMITS)

    async def go(start, busy=False):
        for name, text in (("gold", RIGHT), ("start", start)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "stats.py").write_text(text)
        runs = 0

        @contextlib.asynccontextmanager
        async def open_control():
            nonlocal runs
            runs += 1
            async with holding(tmp_path / "start", fresh)() as sandbox:
                if busy and runs == 1:
                    await sandbox.write("busy", b"")
                yield sandbox

        job = original_job(TestFiles({"test_stats.py": TEST}, ("test_stats.py",)))
        gold = holding(tmp_path / "gold", fresh)
        reference = ReferenceRuns(job, gold, open_control, LookupControl(Path()))
        await asyncio.gather(reference.run("gold"), reference.run("control"))
        return await reference.shown((await reference.gold()).tests), runs

    return go


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_a_control_that_hangs_beside_a_candidate_is_asked_again_alone(shown):
    """Else a candidate that takes the processor would make any inputs count."""
    assert await shown(RIGHT) == (0, 1)
    assert await shown(WRONG) == (1, 1)
    assert await shown(ENDLESS_IF_BUSY, busy=True) == (0, 2)
    assert await shown(ENDLESS) == (1, 2)
    assert await shown(UNIMPORTABLE) == (1, 1)
