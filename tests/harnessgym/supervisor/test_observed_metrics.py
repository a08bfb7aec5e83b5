import json
from dataclasses import replace

from harnessgym.store.policies import PolicyVersion
from harnessgym.supervisor.observed_metrics import StepLog, numbers
from harnessgym.supervisor.progress import PolicyProgress, TrainerUse
from tests.harnessgym.cli.test_run_panel import PROGRESS


def written(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_step_is_noted_once_however_often_it_is_seen(tmp_path):
    path = tmp_path / "observed.jsonl"
    step_log = StepLog(path)
    step_log.note(replace(PROGRESS, steps=0))
    assert not path.exists()
    for steps in (1, 1, 3, 3):
        step_log.note(replace(PROGRESS, steps=steps))
    assert [entry["step"] for entry in written(path)] == [1, 3]


def test_a_run_that_is_taken_up_again_goes_on_behind_what_was_noted(tmp_path):
    path = tmp_path / "observed.jsonl"
    StepLog(path).note(replace(PROGRESS, steps=2))
    again = StepLog(path)
    again.note(replace(PROGRESS, steps=2))
    again.note(replace(PROGRESS, steps=3))
    assert [entry["step"] for entry in written(path)] == [2, 3]


def test_numbers_have_names_and_are_numbers():
    found = numbers(PROGRESS)
    assert found["idle/trainer"] == 0.25
    assert found["busy/engine-0"] == 0.8
    assert (found["version/engine-0"], found["staleness/1"], found["publish/bytes"]) == (6, 30, 2_500_000)
    assert (found["running/run"], found["waiting/run"], found["busy/run"]) == (12.0, 1.5, 0.75)
    assert found["processor/proxy"] == 0.25
    assert "processor/node" not in found  # looked at for the first time
    assert all(isinstance(value, (int, float)) for value in found.values())


def test_the_trainers_of_further_policies_are_named():
    helper = PolicyProgress("helper", 5, 5, {}, TrainerUse(0.5, 1.0, 1.0, 2.0))
    known = {"a": PolicyProgress("scout", 6, 6, {}, PROGRESS.trainer), "b": helper}
    assert numbers(replace(PROGRESS, policies=known))["idle/trainer-helper"] == 0.5


def test_what_nobody_knows_is_left_out():
    found = numbers(replace(PROGRESS, trainer=None, versions=(), restarts=None))
    assert not {"idle/trainer", "publish/bytes", "processes/restarts"} & set(found)
    empty = PolicyVersion(0, None, "delta", "", 0, "", 0, committed=True, orphaned=False)
    assert numbers(replace(PROGRESS, versions=(empty,)))["publish/bytes"] == 0


def test_looking_goes_on_where_the_step_log_cannot_be_written(tmp_path):
    (tmp_path / "observed.jsonl").mkdir()
    step_log = StepLog(tmp_path / "observed.jsonl")
    step_log._last = 0
    assert step_log.recording(lambda: PROGRESS)() is PROGRESS
