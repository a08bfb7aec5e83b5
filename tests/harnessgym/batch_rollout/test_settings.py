"""Which tasks of a set a campaign runs, and what is said of those that it leaves out."""

from dataclasses import replace

import pytest

from harnessgym.batch_rollout.settings import CampaignSettings, chosen_tasks, digest_of
from harnessgym.errors import ConfigError
from harnessgym.task import Limits, Task
from harnessgym.tasks.source import all_tasks, named, task_set
from harnessgym.validation.baseline import Baseline, BaselineEntry, baseline_path
from harnessgym.validation.baseline import digest_of as digest_of_task

TOML = '[[tests]]\nkind = "files"\nrules = [{ path = "a" }]\n'


@pytest.fixture
def folder(tmp_path):
    """A set of native tasks: `a` and `b` for training, `c` for testing."""
    for name, split in (("a", "train"), ("b", "train"), ("c", "test")):
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "task.toml").write_text(f'split = "{split}"\n{TOML}')
        (tmp_path / "set" / name / "instruction.md").write_text("Do it.\n")
    return tmp_path / "set"


@pytest.fixture
def choose(folder, tmp_path):
    def ids(**settings):
        tasks, remarks = chosen_tasks(
            CampaignSettings(folder=tmp_path / "out", tasks=str(folder), **settings)
        )
        return [task.id for task in tasks], remarks

    return ids


def fail(folder, *names):
    """Writes a baseline in which these tasks failed."""
    tasks = task_set(str(folder))
    baseline = Baseline(baseline_path(tasks))
    for name in names:
        task = named(all_tasks(tasks), name)
        entry = BaselineEntry(
            digest=digest_of_task(task), state="failed", problems={"gold": "It is broken."}, sandbox="process"
        )
        baseline.put(task.id, entry)
    baseline.flush()


def test_a_campaign_without_a_set_runs_nothing_of_its_own(tmp_path):
    assert chosen_tasks(CampaignSettings(folder=tmp_path)) == ([], [])


def test_all_tasks_of_both_splits_unless_one_is_named(choose):
    assert choose()[0] == ["set/a", "set/b", "set/c"]
    assert choose(split="test")[0] == ["set/c"]
    assert choose(split="train")[0] == ["set/a", "set/b"]


def test_named_tasks_only_and_the_first_of_them(choose):
    assert choose(task=("c", "a"))[0] == ["set/c", "set/a"]
    assert choose(task=("c", "a"), limit=1)[0] == ["set/c"]
    assert choose(split="test", limit=5)[0] == ["set/c"]


def test_a_split_without_a_task_says_where_they_are(choose):
    with pytest.raises(ConfigError, match=r"have none in the split 'test'\. There are 2 in 'train'\."):
        choose(split="test", task=("a", "b"))


def test_an_unknown_task_is_named(choose):
    with pytest.raises(ConfigError, match="There is no task 'd'"):
        choose(task=("d",))


def test_tasks_that_failed_when_checked_are_left_out_and_named(choose, folder):
    fail(folder, "a")
    ids, remarks = choose()
    assert ids == ["set/b", "set/c"]
    (refusal,) = [remark for remark in remarks if remark.startswith("left out: ")]
    assert "set/a: It is broken." in refusal
    assert refusal.endswith("--unfit runs them all the same.")


def test_unfit_tasks_are_run_when_asked_for(choose, folder):
    fail(folder, "a")
    ids, remarks = choose(unfit=True)
    assert ids == ["set/a", "set/b", "set/c"]
    assert not [remark for remark in remarks if remark.startswith("left out: ")]


def test_a_limit_counts_only_tasks_that_are_run(choose, folder):
    fail(folder, "a")
    assert choose(limit=1)[0] == ["set/b"]


def test_where_every_task_failed_there_is_nothing_to_run(choose, folder):
    fail(folder, "a", "b", "c")
    with pytest.raises(ConfigError, match=r"No task is left to run\.") as error:
        choose()
    assert "set/c: It is broken." in str(error.value)


def test_a_time_limit_replaces_that_of_every_task(folder, tmp_path):
    settings = CampaignSettings(folder=tmp_path / "out", tasks=str(folder), timeout_s=7)
    tasks, _ = chosen_tasks(settings)
    assert [task.limits for task in tasks] == [replace(Limits(), wall_s=7.0)] * 3


def test_equal_tasks_have_one_digest_and_any_change_another():
    task = Task("a", "x", files={"f": "1"}, needs=frozenset({"root", "disk"}))
    assert digest_of([task]) == digest_of([replace(task, needs=frozenset(["disk", "root"]))])
    changed = [
        [],
        [task, task],
        [replace(task, instruction="y")],
        [replace(task, files={"f": "2"})],
        [replace(task, metadata={"a": None})],
    ]
    assert len({digest_of(tasks) for tasks in ([task], *changed)}) == 6


def test_tasks_that_cannot_have_the_required_second_opinion_are_left_out_and_named(folder, choose):
    for name in "abc":
        (folder / name / "gold").mkdir()
        (folder / name / "gold" / "a").write_text("1")
    tasks = task_set(str(folder))
    baseline = Baseline(baseline_path(tasks))
    for name, by_value in (("a", "It has no tests."), ("b", (3, 1))):
        task = named(all_tasks(tasks), name)
        entry = BaselineEntry(
            digest=digest_of_task(task), state="passed", by_value=by_value, sandbox="process"
        )
        baseline.put(task.id, entry)
    baseline.flush()
    assert choose()[0] == ["set/a", "set/b", "set/c"]
    ids, remarks = choose(second_opinion="required")
    assert ids == ["set/b", "set/c"]
    (left_out,) = [remark for remark in remarks if remark.startswith("left out: ")]
    assert "set/a: It has no tests." in left_out
    assert left_out.endswith("--second-opinion\n--unfit runs them all the same.")
    assert any(
        "1 task of" in remark and "never checked for the second opinion" in remark for remark in remarks
    )
    assert choose(second_opinion="required", unfit=True)[0] == ["set/a", "set/b", "set/c"]
    with pytest.raises(ConfigError, match=r"No task is left to run\.[\s\S]*It has no tests"):
        choose(second_opinion="required", task=("a",))
