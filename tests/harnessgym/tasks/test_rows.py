"""Data sets in every way they are kept."""

import json
import sys

import pytest

from harnessgym.errors import TaskError
from harnessgym.tasks.rows import files_of, first_row, read_rows

ROWS = [{"instance_id": "a", "n": 1, "tests": ["x", "y"]}, {"instance_id": "b", "n": 2, "tests": []}]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def values(path):
    found = read_rows(path)
    assert found.problems == []
    return [dict(row.values) for row in found.rows]


def test_lines_lists_objects_and_what_the_hub_shows(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n" + lines(ROWS) + "\n")
    (tmp_path / "b.json").write_text(json.dumps(ROWS))
    (tmp_path / "c.json").write_text(
        json.dumps({"rows": [{"row_idx": i, "row": row} for i, row in enumerate(ROWS)]})
    )
    (tmp_path / "d.json").write_text(json.dumps(ROWS[0]))
    assert values(tmp_path / "a.jsonl") == values(tmp_path / "b.json") == values(tmp_path / "c.json") == ROWS
    assert values(tmp_path / "d.json") == ROWS[:1]
    for name in ("a.jsonl", "b.json", "c.json", "d.json"):
        assert first_row(tmp_path / name) == ROWS[0]
    assert values(tmp_path) == [*ROWS, *ROWS, *ROWS, ROWS[0]]


def test_parquet_and_what_datasets_saves_are_rows(tmp_path):
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list(ROWS)
    made.to_parquet(tmp_path / "test-00000-of-00001.parquet")
    assert values(tmp_path / "test-00000-of-00001.parquet") == ROWS
    made.save_to_disk(str(tmp_path / "saved"))
    assert values(tmp_path / "saved") == ROWS
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(str(tmp_path / "both"))
    found = read_rows(tmp_path / "both").rows
    assert [row.split for row in found] == ["test", "test", "train", "train"]
    assert first_row(tmp_path / "both") == ROWS[0]
    (tmp_path / "hub" / "data").mkdir(parents=True)
    made.to_parquet(tmp_path / "hub" / "data" / "train-00000-of-00001.parquet")
    assert values(tmp_path / "hub") == ROWS


def test_a_file_of_record_batches_is_rows(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.Table.from_pylist(ROWS)
    with (
        arrow.OSFile(str(tmp_path / "a.arrow"), "wb") as sink,
        arrow.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    assert values(tmp_path / "a.arrow") == ROWS
    (tmp_path / "b.arrow").write_bytes(b"no arrow")
    with pytest.raises(TaskError, match=r"b\.arrow cannot be read as Arrow"):
        read_rows(tmp_path / "b.arrow")
    (tmp_path / "c.parquet").write_bytes(b"no parquet")
    with pytest.raises(TaskError, match=r"c\.parquet cannot be read as Parquet"):
        read_rows(tmp_path / "c.parquet")


def test_without_pyarrow_it_is_said_what_to_install(tmp_path):
    """In an interpreter of its own, where it cannot be found."""
    import subprocess

    (tmp_path / "a.parquet").write_bytes(b"")
    program = (
        "import sys; sys.modules['pyarrow'] = None\nfrom pathlib import Path\nfrom harnessgym.tasks.rows "
        "import *\n"
        f"path = Path({str(tmp_path / 'a.parquet')!r})\nassert first_row(path) is None\ntry:\n    "
        "read_rows(path)\n"
        "except TaskError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "needs pyarrow" in done.stdout
    assert "pip install 'harnessgym-rl[export]'" in done.stdout


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("test.jsonl", "test"),
        ("dev.jsonl", "test"),
        ("validation-1.jsonl", "test"),
        ("train.jsonl", "train"),
        ("mine.jsonl", "train"),
    ],
)
def test_a_file_says_its_split_by_its_name(tmp_path, name, split):
    (tmp_path / name).write_text(lines(ROWS))
    assert {row.split for row in read_rows(tmp_path / name).rows} == {split}


def test_a_line_that_is_no_row_leaves_the_others(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": \n[3]\n{"a": 2}\n')
    found = read_rows(tmp_path / "a.jsonl")
    assert [row.values["a"] for row in found.rows] == [1, 2]
    assert [row.where for row in found.rows] == [
        f"{tmp_path / 'a.jsonl'}: row 1",
        f"{tmp_path / 'a.jsonl'}: row 4",
    ]
    assert "line 2 is no JSON" in found.problems[0]
    assert "row 3 is no object" in found.problems[1]


def test_what_is_no_json_at_all_is_named(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(TaskError, match=r"a\.json is no JSON.*name it \.jsonl"):
        read_rows(tmp_path / "a.json")
    assert first_row(tmp_path / "a.json") is None


def test_other_files_are_no_rows(tmp_path):
    for name in ("notes.md", "dataset_info.json", "package.json"):
        (tmp_path / name).write_text("{}")
    assert files_of(tmp_path) == []
    assert files_of(tmp_path / "notes.md") == []
    assert first_row(tmp_path) is None
    assert first_row(tmp_path / "nowhere") is None


def test_a_first_row_longer_than_the_look_is_found(tmp_path):
    long = [{"instance_id": "a", "text": "x" * (2 << 20)}]
    (tmp_path / "a.json").write_text(json.dumps(long))
    assert first_row(tmp_path / "a.json") == long[0]


def test_a_byte_order_mark_before_the_first_row_does_not_matter(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines(ROWS), encoding="utf-8-sig")
    (tmp_path / "b.json").write_text(json.dumps(ROWS), encoding="utf-8-sig")
    for name in ("a.jsonl", "b.json"):
        assert first_row(tmp_path / name) == ROWS[0]
        assert values(tmp_path / name) == ROWS


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("test2.jsonl", "test"),
        ("eval_hard.jsonl", "test"),
        ("testing.jsonl", "train"),
        ("evaluation.jsonl", "train"),
        ("latest.jsonl", "train"),
        ("TEST.jsonl", "test"),
    ],
)
def test_only_whole_words_at_the_start_of_a_name_hold_rows_out(tmp_path, name, split):
    (tmp_path / name).write_text(lines(ROWS))
    assert {row.split for row in read_rows(tmp_path).rows} == {split}


def test_a_file_named_alone_is_not_held_out_by_its_folder(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "rows.jsonl").write_text(lines(ROWS))
    assert {row.split for row in read_rows(tmp_path / "test" / "rows.jsonl").rows} == {"train"}


def test_rows_of_a_folder_come_by_name_and_then_those_of_its_data_folder(tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("b.jsonl", "a.jsonl", "data/0.jsonl"):
        (tmp_path / name).write_text(json.dumps({"file": name}))
    assert [row["file"] for row in values(tmp_path)] == ["a.jsonl", "b.jsonl", "data/0.jsonl"]


def test_values_that_are_no_objects_are_named_with_their_place(tmp_path):
    (tmp_path / "a.json").write_text('[{"n": 1}, 7, null, ["x"]]')
    rows = read_rows(tmp_path / "a.json")
    assert [row.values for row in rows.rows] == [{"n": 1}]
    assert [problem.partition(": ")[2][:27] for problem in rows.problems] == [
        "row 2 is no object but '7'.",
        "row 4 is no object but \"['x",
    ]
