"""Recording calls: which functions are watched, and how the recorded ones are read."""

from harnessgym.grading.differential.functions import functions_of
from harnessgym.grading.differential.inputs import FunctionCall
from harnessgym.grading.differential.recording import recorded_calls, recording_job
from harnessgym.grading.differential.suite import Probe
from harnessgym.sandbox import ExecResult


def test_functions_are_watched_by_their_first_line_and_classes_by_name(tmp_path):
    (tmp_path / "stats.py").write_text(
        "def median(values): ...\n\nclass Stack:\n    @property\n    def top(self): ...\n    def push(self, value): ...\n"
    )
    job = recording_job(functions_of(tmp_path, "stats.py"), ["src"], 5)
    assert job["targets"] == {"stats.py": {"1": "median", "4": "Stack.top", "6": "Stack.push"}}
    assert job["classes"] == {"stats.py": ["Stack"]}
    assert (job["roots"], job["most"], job["order"]) == (["src"], 5, [])


def test_recorded_calls_are_read_by_function():
    call = {"args": [1], "kwargs": {"$dict": []}, "new": None}
    line = {"file": "stats.py", "function": "median", "call": call}
    result = ExecResult(0, None, b"", b"", False, False, False, 1.0)
    runs = [Probe(({"began": True}, line, {"ended": 0}), 0, result)] * 2
    made = FunctionCall([1], {"$dict": []}, None, seen=True)
    assert recorded_calls(runs) == {("stats.py", "median"): [made, made]}
