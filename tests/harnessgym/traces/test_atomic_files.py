"""Files that appear complete or not at all."""

import math
from types import SimpleNamespace

import pytest

from harnessgym.errors import ConfigError
from harnessgym.traces.atomic_files import dumped, replacing, replacing_text, write_documents, write_lines

ROLLOUTS = [SimpleNamespace(id="a"), SimpleNamespace(id="b")]


def named(rollout):
    return {"id": rollout.id}


def fail_halfway(context, begin):
    """Begin to write, and fail."""
    with context as part:
        begin(part)
        raise LookupError


def left(folder):
    """The names of all files in a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_a_file_replaces_the_old_one_at_the_end(tmp_path):
    out = tmp_path / "deep" / "out.txt"
    with replacing_text(out) as file:
        file.write("é")
        assert not out.exists()
    with replacing(out) as part:
        part.write_text("new")
        assert out.read_text(encoding="utf-8") == "é"
    assert out.read_text() == "new"
    assert left(out.parent) == ["out.txt"]


def test_after_an_error_the_old_file_is_there_and_nothing_else(tmp_path):
    out = tmp_path / "out.txt"
    out.write_text("old")
    with pytest.raises(LookupError):
        fail_halfway(replacing_text(out), lambda file: file.write("half"))
    assert out.read_text() == "old"
    assert left(tmp_path) == ["out.txt"]


def test_after_an_error_half_a_folder_is_removed(tmp_path):
    with pytest.raises(LookupError):
        fail_halfway(replacing(tmp_path / "out"), lambda part: (part / "x").mkdir(parents=True))
    assert left(tmp_path) == []


def test_a_folder_with_files_is_never_replaced(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="is not empty"), replacing(tmp_path):
        pass
    with (
        pytest.raises(ConfigError, match=r"this format is one file.*traces\.jsonl"),
        replacing_text(tmp_path),
    ):
        pass
    assert left(tmp_path) == ["mine"]


def test_lines_are_counted(tmp_path):
    out = tmp_path / "out.jsonl"
    assert write_lines(ROLLOUTS, out, lambda rollout: [named(rollout)] * 2) == 4
    assert out.read_text() == '{"id":"a"}\n{"id":"a"}\n{"id":"b"}\n{"id":"b"}\n'
    assert write_lines([], out, lambda rollout: [named(rollout)]) == 0
    assert out.read_text() == ""


def test_documents_are_lines_a_file_or_a_folder(tmp_path):
    assert write_documents(ROLLOUTS, tmp_path / "out.jsonl", named) == 2
    assert (tmp_path / "out.jsonl").read_text() == '{"id":"a"}\n{"id":"b"}\n'
    assert write_documents(ROLLOUTS[:1], tmp_path / "out.json", named) == 1
    assert (tmp_path / "out.json").read_text() == '{"id":"a"}'
    assert write_documents(ROLLOUTS, tmp_path / "out", named) == 2
    assert left(tmp_path / "out") == ["a.json", "b.json"]


def test_a_json_file_holds_one_document(tmp_path):
    with pytest.raises(ConfigError, match=r"holds one rollout; for several name a \.jsonl file"):
        write_documents(ROLLOUTS, tmp_path / "out.json", named)
    assert left(tmp_path) == []


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "out.txt").write_text("mine")
    with pytest.raises(ConfigError, match="a file of an unknown kind"):
        write_documents(ROLLOUTS, tmp_path / "out.txt", named)
    assert (tmp_path / "out.txt").read_text() == "mine"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_refused(value):
    with pytest.raises(ValueError, match="JSON"):
        dumped({"x": value})


def test_text_is_not_escaped():
    assert dumped({"é": [1, None, True]}) == '{"é":[1,null,true]}'
