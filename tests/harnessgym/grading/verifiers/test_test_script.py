"""Test scripts of tasks: their settings, their evidence, and what makes a result mean nothing."""

import pytest

from harnessgym.errors import TaskError
from harnessgym.grading.verifiers.test_script import ScriptRun, VerifierScript, complete, script_of
from harnessgym.sandbox import ExecResult
from harnessgym.task import Task


def ended(exit_code=0, signal=None, stdout=b"", stderr=b"", wall_s=1.23456):
    return ExecResult(exit_code, signal, stdout, stderr, False, False, False, wall_s)


def test_a_script_has_defaults():
    script = script_of(Task("t", "x"), "harbor")
    assert (script.script, script.laid, script.timeout_s, script.root) == ("test.sh", True, 600.0, True)


def test_the_settings_are_below_the_key_of_the_format():
    task = Task("t", "x", metadata={"harbor": {"timeout_s": 5}, "terminal_bench": {"script": "run.sh"}})
    assert script_of(task, "harbor").timeout_s == 5.0
    assert script_of(task, "terminal_bench").script == "run.sh"


@pytest.mark.parametrize(
    ("settings", "what"), [({"timeout_s": 0}, "timeout_s"), ({"scrpt": "a"}, "Did you mean 'script'")]
)
def test_a_mistake_is_the_tasks_and_names_the_key(settings, what):
    with pytest.raises(TaskError) as error:
        script_of(Task("set/one", "x", metadata={"harbor": settings}), "harbor")
    assert "Task 'set/one': metadata.harbor" in str(error.value)
    assert what in str(error.value)


def test_settings_survive_being_stored():
    script = VerifierScript(env={"A": "1"}, executable=("a",), root=False)
    task = Task("t", "x", metadata={"harbor": script.model_dump(mode="json")})
    assert script_of(task, "harbor") == script


def test_the_evidence_of_a_run():
    run = ScriptRun(ended(3, stdout=b"out\n", stderr=b"err\n"), root=True)
    assert run.evidence == {"exit_code": 3, "seconds": 1.235, "root": True, "output": "out\nerr\n"}


def test_a_signal_is_part_of_the_evidence():
    assert ScriptRun(ended(None, 9), root=False).evidence["signal"] == 9
    assert "signal" not in ScriptRun(ended(), root=False).evidence


def test_only_the_end_of_the_output_is_evidence():
    run = ScriptRun(ended(stdout=b"x" * 5_000, stderr=b"\xff"), root=True)
    assert run.evidence["output"] == "x" * 3_999 + "\ufffd"


def test_a_run_that_lacked_nothing_is_complete():
    complete(ScriptRun(ended(), root=True), VerifierScript(), "Task 't'")


def test_what_a_script_could_not_fetch_is_the_tasks_fault():
    run = ScriptRun(ended(), root=True, missing=tuple(f"pip {number}" for number in range(10)))
    with pytest.raises(TaskError) as error:
        complete(run, VerifierScript(script="run.sh"), "Task 't'")
    assert str(error.value).startswith("Task 't': run.sh asked for pip 0; pip 1;")
    assert "pip 7, and nothing can be fetched while grading" in str(error.value)
    assert "pip 8" not in str(error.value)


def test_a_long_list_of_what_is_missing_is_cut():
    run = ScriptRun(ended(), root=True, missing=("x" * 5_000,))
    with pytest.raises(TaskError) as error:
        complete(run, VerifierScript(), "Task 't'")
    assert "x" * 1_000 in str(error.value)
    assert "x" * 1_001 not in str(error.value)
