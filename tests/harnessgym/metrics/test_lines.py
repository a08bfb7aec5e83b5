import json

from hypothesis import given
from hypothesis import strategies as st

from harnessgym.metrics.lines import StepLines, append


def steps(lines):
    return [int(entry["step"]) for entry in lines.read()]


def test_only_what_is_new_is_read_and_all_is_returned(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = StepLines(path)
    assert lines.read() == []
    append(path, {"step": 1})
    assert steps(lines) == [1]
    append(path, {"step": 2})
    assert steps(lines) == [1, 2]
    assert lines._offset == path.stat().st_size


def test_half_a_line_waits_for_its_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = StepLines(path)
    path.write_text('{"step": 1}\n{"step"')
    assert steps(lines) == [1]
    with path.open("a") as file:
        file.write(": 2}\n")
    assert steps(lines) == [1, 2]


def test_lines_that_are_about_no_step_are_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '7\n[]\n{"kind": "note"}\n{"step": "x"}\n{"step": null}\n{"step": 1e999}\n{"step": 3.0}\n\xff\n'
    )
    assert steps(StepLines(path)) == [3]


def test_a_file_that_was_replaced_is_read_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = StepLines(path)
    path.write_text('{"step": 1}\n{"step": 2}\n')
    assert steps(lines) == [1, 2]
    path.write_text('{"step": 1}\n')
    assert steps(lines) == [1]


def test_who_keeps_what_was_made_of_the_entries_is_told_when_they_change(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = StepLines(path)
    append(path, {"step": 1})
    append(path, {"step": 3})
    assert (steps(lines), lines.rewritten) == ([1, 3], 0)
    append(path, {"step": 4})
    assert (steps(lines), lines.rewritten) == ([1, 3, 4], 0)
    append(path, {"step": 2})
    assert (steps(lines), lines.rewritten) == ([1, 2, 3, 4], 1)
    append(path, {"step": 4, "reward": 1.0})
    assert (lines.read()[-1], lines.rewritten) == ({"step": 4, "reward": 1.0}, 2)
    path.write_text("")
    assert (steps(lines), lines.rewritten) == ([], 3)


def test_a_line_behind_a_torn_one_stands_on_its_own(tmp_path):
    path = tmp_path / "observed.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "rat')
    append(path, {"step": 2, "rate": 1.0})
    assert StepLines(path).read() == [{"step": 1}, {"step": 2, "rate": 1.0}]


@given(
    written=st.lists(st.tuples(st.integers(1, 6), st.floats(0, 1)), max_size=12),
    cuts=st.lists(st.integers(1, 40), max_size=6),
)
def test_however_it_is_read_the_last_word_on_each_step_counts(written, cuts, tmp_path_factory):
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    text = "".join(json.dumps({"step": step, "reward": reward}) + "\n" for step, reward in written).encode()
    lines, position = StepLines(path), 0
    for cut in cuts:
        path.write_bytes(text[: position + cut])
        position = min(len(text), position + cut)
        lines.read()
    path.write_bytes(text)
    assert {entry["step"]: entry["reward"] for entry in lines.read()} == dict(written)
