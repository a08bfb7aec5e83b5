"""Plans: the tests that run what a solution changes, which of them show it, and how variants are shared out."""

import importlib.util
import random

import pytest

from harnessgym.grading.by_value.calls import PlannedCall
from harnessgym.grading.by_value.judge import ByValueJudge
from harnessgym.grading.by_value.plan import (
    JudgementPlan,
    PlannedTest,
    TestFiles,
    files_of,
    observe,
    original_job,
    prepared,
    source_of,
    variant_job,
)
from harnessgym.grading.differential.functions import changed
from harnessgym.grading.upload import holding
from harnessgym.provisioning import equipment_of
from harnessgym.sandbox import Equipment
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits

TEST = "def test_a():\n    assert f(1)\n\n\ndef test_b():\n    assert f(2)\n"
FILES = TestFiles({"tests/test_x.py": TEST, "tests/data.txt": "x"}, ("tests/test_x.py",), ("src",))


@pytest.fixture
def write(tmp_path):
    def go(folder, files):
        for path, text in files.items():
            (tmp_path / folder / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / path).write_text(text)
        return tmp_path / folder

    return go


@pytest.mark.anyio
@pytest.mark.bubblewrap
async def test_a_plan_names_the_tests_that_run_what_changes(make_task, bubblewrap, tmp_path):
    task = make_task()
    judge = ByValueJudge(tmp_path)
    reference = await judge.reference(
        task, lambda: bubblewrap.open(task.limits, equipment_of(task, grades=True))
    )
    tests = {test.function: test.telling for test in reference.plan.tests}
    assert tests == {"test_even": True, "test_stack": True, "test_odd": False, "test_nothing": False}
    assert {call.function for call in reference.plan.calls} == {"median", "Stack.pop"}
    assert JudgementPlan.from_dict(reference.plan.to_dict()) == reference.plan


@pytest.mark.anyio
@pytest.mark.parametrize("is_gold", [False, True])
async def test_a_run_reads_the_interpreters_compiled_files_and_no_others(
    tmp_path, anyio_backend, write, is_gold
):
    """Compiling pytest anew would take longer than most judgements."""
    work = write("left", {"work.py": "def f(): return 1\n"})
    compiled = tmp_path / importlib.util.cache_from_source("left/work.py")
    compiled.parent.mkdir()
    code = compile("def f(): return 2\n", "work.py", "exec")
    compiled.write_bytes(importlib._bootstrap_external._code_to_hash_pyc(code, bytes(8), checked=False))
    test = "import pytest\nimport work\n\n\ndef test_f():\n    assert (work.f(), pytest.__cached__)\n"
    job = original_job(TestFiles({"test_f.py": test}, ("test_f.py",)))
    async with ProcessBackend(ProcessSettings(workspace_root=tmp_path / "w")) as backend:
        opener = holding(work, lambda: backend.open(Limits(), Equipment(proxy=False)))
        run = await observe(opener, job, is_gold=is_gold)
    ((answer, *_),) = run.tests["test_f.py::test_f"].groups
    assert "1" in str(answer)
    assert "nonexistent" not in str(answer)
    assert "pytest" in str(answer)


def test_the_changed_functions_are_those_that_differ_or_use_what_does(write):
    gold = write("gold", {"a.py": "N = 2\ndef f(): return 1\ndef g(): return N\ndef h(): return f()\n"})
    start = write("start", {"a.py": "N = 1\ndef f(): return 2\ndef g(): return N\ndef h(): return f()\n"})
    assert changed(gold, start) == {"a.py::f", "a.py::g"}
    assert changed(gold, write("none", {"b.py": ""})) == {"a.py::f", "a.py::g", "a.py::h"}
    assert changed(gold, gold) == frozenset()


def test_prepared_functions_report_themselves_and_keep_their_docstrings(write):
    source = 'class A:\n    def f(self):\n        """Doc."""\n        return 1\n\nif True:\n    def g():\n        yield 2\n'
    folder = write("w", {"a.py": source, "broken.py": "def (", "test_a.py": "def test_a(): pass\n"})
    (text,) = prepared(folder).values()
    reached = []
    scope = {"__reached__": reached.append}
    exec(text, scope)
    assert scope["A"]().f() == 1
    assert list(scope["g"]()) == [2]
    assert scope["A"].f.__doc__ == "Doc."
    assert reached == ["a.py::A.f", "a.py::g"]


def test_most_variants_are_of_tests_that_show_the_fault():
    plan = JudgementPlan(
        (PlannedTest("tests/test_x.py", "test_a", True), PlannedTest("tests/test_x.py", "test_b", False))
    )
    sources = {"tests/test_x.py": source_of("tests/test_x.py", TEST)}
    job = variant_job(FILES, sources, plan, random.Random(0))
    wanted = list(job["tests"].values())
    assert wanted.count(["test_a"]) == 2 * wanted.count(["test_b"])
    assert {path.rpartition("/")[0] for path in job["tests"]} == {"tests"}
    assert set(job["files"]) - set(job["tests"]) == {"tests/data.txt"}
    assert job["sources"] == ["src"]


def test_inputs_that_are_drawn_again_are_four_times_as_many():
    plan = JudgementPlan(
        (PlannedTest("tests/test_x.py", "test_a", True),), (PlannedCall("m", "f", ["abcd"], {"$dict": []}),)
    )
    sources = {"tests/test_x.py": source_of("tests/test_x.py", TEST)}
    once, again = (variant_job(FILES, sources, plan, random.Random(0), again=each) for each in (False, True))
    variants = [list(job["tests"].values()).count(["test_a"]) for job in (once, again)]
    assert variants == [variants[0], 4 * variants[0]]
    calls = [job["files"][list(job["tests"])[-1]].count("__observe__(") for job in (once, again)]
    assert calls[1] > calls[0]


def test_calls_are_a_file_of_their_own():
    plan = JudgementPlan(calls=(PlannedCall("m", "f", [1], {"$dict": []}),))
    job = variant_job(FILES, {}, plan, random.Random(0))
    ((path, tests),) = job["tests"].items()
    assert tests is None
    assert "importlib" in job["files"][path]


def test_the_test_files_of_a_task_are_its_own_or_those_of_the_gold_workspace(make_task, write):
    gold = write("gold", {"src/a.py": "", "tests/test_a.py": TEST, "tests/helper.py": "x = 1\n"})
    own = files_of(make_task(), gold, {})
    assert own.collected == ("test_stats.py",)
    found = files_of(make_task(metadata={}), gold, {})
    assert found.collected == ("tests/test_a.py",)
    assert found.helpers == {"tests/helper.py": "x = 1\n"}
    assert found.sources == ("src",)
    added = {"tests/test_a.py": "", "tests/test_b.py": TEST}
    assert files_of(make_task(metadata={}), gold, added).texts == {**found.texts, **added}
    named = {"test_files": {"test_outputs.py": TEST, "data.txt": ""}}
    assert files_of(make_task(metadata=named), gold, {}).collected == ("test_outputs.py",)
