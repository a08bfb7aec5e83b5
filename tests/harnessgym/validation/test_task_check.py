"""Checks of tasks in real sandboxes: their states, the words for each failure, and what is not run again."""

import pytest

from harnessgym.sandboxes.process import ProcessBackend, ProcessSettings
from harnessgym.task import Solution, Task, TaskStep
from harnessgym.validation.baseline import Baseline
from harnessgym.validation.task_check import CheckPlan, Progress, TaskSetCheck, has_gold


def there(path, weight=1.0):
    return {"kind": "files", "rules": [{"path": path}], "weight": weight}


def task(name="t", *checks, gold="right", **fields):
    metadata = {"tests": checks or (there("right"),), "score": "weighted", "test_files": {}}
    solution = None if gold is None else Solution({gold: "1"})
    return Task(name, "Do it.", grader="checks", solution=solution, metadata=metadata, **fields)


@pytest.fixture
def check(tmp_path, anyio_backend):
    """Checks tasks against the baseline in `tmp_path`."""

    async def run(*tasks, observe=lambda _: None, **plan):
        backend = ProcessBackend(ProcessSettings(workspace_root=tmp_path / "w"))
        baseline = Baseline(tmp_path / "baseline.json")
        plan = CheckPlan("process", **{"repeats": 1, **plan})
        return await TaskSetCheck(backend, baseline, plan, observe).run(tasks, jobs=2)

    return run


@pytest.mark.anyio
async def test_states_and_reasons(check):
    results = await check(
        task("passes"),
        task("half", there("right"), there("never")),
        task("wrong", gold="wrong"),
        task("free", there("right", 3.0), {"kind": "files", "rules": [{"path": "x", "absent": True}]}),
        task("unsolved", gold=None),
        task("rooted", needs=frozenset({"root"})),
    )
    never = "The solution was never rewarded (1 runs): "
    assert {result.task: (result.state, *result.why) for result in results} == {
        "passes": ("passed",),
        "half": ("failed", f"{never}scored 0.5 (0 of 1 rules never: there is no such file)"),
        "wrong": ("failed", f"{never}scored 0 (0 of 1 rules right: there is no such file)"),
        "free": ("failed", "Doing nothing scored 0.25 (0 of 1 rules right: there is no such file)"),
        "unsolved": ("no solution",),
        "rooted": ("skipped", "The process sandbox lacks root."),
    }
    assert [result.ran for result in results] == [2, 2, 2, 2, 1, 0]


@pytest.mark.anyio
async def test_what_is_known_is_not_run_again_unless_asked_for(check, tmp_path):
    (first,) = await check(task())
    (known,) = await check(task())
    (more,) = await check(task(), repeats=2)
    (again,) = await check(task(), again=True)
    (changed,) = await check(task("t", there("right"), there("right")))
    assert [each.ran for each in (first, known, more, again, changed)] == [2, 0, 1, 2, 2]
    assert known.entry == first.entry
    assert (more.entry.gold, again.entry.gold) == ((1.0, 1.0), (1.0,))
    assert Baseline(tmp_path / "baseline.json").of(task()) is None


@pytest.mark.anyio
async def test_progress_counts_runs_and_tasks(check):
    seen = []
    await check(
        task("a"),
        task("b", gold=None),
        observe=lambda now: seen.append((now.runs, now.done, now.tasks, now.finished)),
    )
    assert seen[0] == (3, 0, 2, 0)
    assert seen[-1] == (3, 3, 2, 2)
    assert [done for _, done, _, _ in seen] == sorted(done for _, done, _, _ in seen)


def test_a_task_of_several_steps_needs_a_solution_for_each():
    solved = TaskStep("a", "x", solution=Solution({"a": "1"}))
    assert has_gold(Task("t", "x", steps=(solved, solved)))
    assert not has_gold(Task("t", "x", steps=(solved, TaskStep("b", "x"))))
    assert not has_gold(Task("t", "x", solution=Solution(), steps=(TaskStep("b", "x"),)))
    assert not has_gold(Task("t", "x"))


def test_the_time_left_is_known_once_a_run_is_done():
    progress = Progress(10)
    assert progress.eta_s is None
    progress.done = 5
    assert progress.eta_s >= 0
    progress.done = 10
    assert progress.eta_s == 0


def test_half_done_tasks_count_as_half():
    progress = Progress(10, done=5, tasks=4)
    progress.began -= 60.0
    assert progress.tasks_per_minute == pytest.approx(2.0, rel=0.01)
    assert progress.eta_s == pytest.approx(60.0, rel=0.01)
