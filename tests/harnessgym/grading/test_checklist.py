"""A list of checks becomes one reward: all or nothing, or a weighted part."""

import pytest

from harnessgym.errors import TaskError
from harnessgym.grading.checklist import verifier
from harnessgym.grading.outcome import CheckOutcome
from harnessgym.registry import load
from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Limits, Task

pytestmark = pytest.mark.anyio


def there(path, **fields):
    return {"kind": "files", "rules": [{"path": path}], **fields}


def task_of(*checks, score="all", test_files=None):
    return Task(
        "set/one", "Do it.", metadata={"tests": checks, "score": score, "test_files": test_files or {}}
    )


def no_sandbox():
    pytest.fail("a check of files opened a sandbox")


@pytest.fixture
def grade(tmp_path):
    """Grades a workspace with the files `names`, without sandboxes."""

    async def go(task, *names):
        for name in names:
            (tmp_path / name).write_text("")
        return await verifier.verify(task, tmp_path, no_sandbox)

    return go


async def test_all_checks_must_pass(grade):
    task = task_of(there("a"), there("b"))
    assert (await grade(task, "a")).rewards == {"reward": 0.0}
    assert (await grade(task, "b")).rewards == {"reward": 1.0}


async def test_weights_decide_how_much_a_check_counts(grade):
    task = task_of(there("a", weight=3), there("b"), score="weighted")
    assert (await grade(task)).rewards == {"reward": 0.0}
    assert (await grade(task, "a")).rewards == {"reward": 0.75}


async def test_the_evidence_names_every_check(grade):
    result = await grade(task_of(there("a", name="first"), there("b")), "a")
    assert result.evidence["checks"] == [
        {"name": "first", "passed": True, "detail": "1 of 1 rules"},
        {"name": "files 1", "passed": False, "detail": "0 of 1 rules\nb: there is no such file"},
    ]


async def test_at_most_three_rules_are_named(grade):
    rules = [{"path": f"file-{number}"} for number in range(5)]
    result = await grade(task_of({"kind": "files", "rules": rules}))
    (check,) = result.evidence["checks"]
    assert check["detail"].splitlines() == [
        "0 of 5 rules",
        "file-0: there is no such file",
        "file-1: there is no such file",
        "file-2: there is no such file",
    ]


async def test_a_task_without_checks_is_at_fault(grade):
    with pytest.raises(TaskError, match="Task 'set/one': tests: there are none"):
        await grade(task_of())


async def test_a_part_counts_only_in_a_weighted_score(tmp_path):
    half = {
        "kind": "io",
        "command": ["cat"],
        "cases": [{"stdin": "1", "stdout": "1"}, {"stdin": "1", "stdout": "2"}],
        "partial": True,
    }
    async with ProcessBackend(ProcessSettings(workspace_root=tmp_path / "w")) as backend:

        async def reward(score):
            task = task_of(half, there("absent", weight=3), score=score)
            return (await verifier.verify(task, tmp_path, lambda: backend.open(Limits()))).rewards["reward"]

        assert await reward("weighted") == 0.5 / 4
        assert await reward("all") == 0.0


async def test_the_first_check_that_finds_tampering_is_the_last(tmp_path):
    script = {"kind": "command", "result": "json", "weight": 1}
    task = task_of(script, there("a"), score="weighted", test_files={"run.sh": "echo nonsense\n"})
    (tmp_path / "a").write_text("")
    async with ProcessBackend(ProcessSettings(workspace_root=tmp_path / "w")) as backend:
        result = await verifier.verify(task, tmp_path, lambda: backend.open(Limits()))
    assert result.rewards == {"reward": 0.0}
    assert result.tampered == (
        "The result of run.sh cannot be: it printed b'nonsense', which is no JSON of one reward."
    )
    assert [check["name"] for check in result.evidence["checks"]] == ["command 0"]


def test_the_verifier_is_the_registered_grader():
    assert load("grader", "checks") is verifier


def test_an_outcome_is_all_or_nothing_unless_it_has_a_part():
    assert CheckOutcome(True).part is None
    assert CheckOutcome(True).tampered is None
