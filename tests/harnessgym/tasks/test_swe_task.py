"""Columns of rows that describe a change: their types, what is empty, and a solution that git applies."""

import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harnessgym.errors import TaskError
from harnessgym.tasks.rows import TaskRow
from harnessgym.tasks.swe_task import base_files, begun, gold, ids_of, instance, rest, scrubbed, text


def row(**values):
    return TaskRow("rows.jsonl: row 3", values)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({}, "key is missing"),
        ({"key": None}, "key is missing"),
        ({"key": ""}, "key is empty"),
        ({"key": " \n"}, "key is ' \\n'"),
        ({"key": 7}, "key is '7'"),
        ({"key": ["a"]}, "key is \"['a']\""),
    ],
)
def test_a_text_that_is_none_is_named_with_row_and_key(values, what):
    with pytest.raises(TaskError) as error:
        text(row(**values), "key")
    assert str(error.value) == f"rows.jsonl: row 3: {what}. Give text."


def test_a_default_stands_for_a_missing_text_only():
    assert text(row(), "key", "other") == "other"
    assert text(row(key=None), "key", "other") == "other"
    assert text(row(key=""), "key", "other") == ""
    with pytest.raises(TaskError, match="key is '7'"):
        text(row(key=7), "key", "other")


@pytest.mark.parametrize("name", ["astropy__astropy-1", "a", "0.1+x_-y"])
def test_ids_that_can_be_names(name):
    assert instance(row(instance_id=name)) == name


@pytest.mark.parametrize("name", ["a/b", "-a", "a b", "a\n", ".a", "é"])
def test_ids_that_cannot_be_names(name):
    with pytest.raises(TaskError, match="holds signs that no id has"):
        instance(row(instance_id=name))


@given(st.lists(st.text(max_size=10), max_size=5))
def test_test_ids_are_a_list_or_json_of_one(ids):
    assert ids_of(row(key=ids), "key") == ids
    assert ids_of(row(key=json.dumps(ids)), "key") == ids


@pytest.mark.parametrize("value", [None, "", " ", [], "[]"])
def test_no_ids_are_an_error_only_where_some_are_needed(value):
    assert ids_of(row(key=value), "key") == []
    with pytest.raises(TaskError, match="key names no test"):
        ids_of(row(key=value), "key", needed=True)


@pytest.mark.parametrize("value", ["{}", '{"a": 1}', [1], ["a", None], 5, '["a", 1]'])
def test_what_is_no_list_of_texts_is_shown(value):
    with pytest.raises(TaskError, match=r"row 3: key is .*Give a list of test ids, or JSON of one\."):
        ids_of(row(key=value), "key")


def test_text_that_is_no_json_is_named():
    with pytest.raises(TaskError, match="key is text that is no JSON"):
        ids_of(row(key="test_a, test_b"), "key")


def test_the_rest_is_sorted_and_has_only_json_values():
    values = row(b=[1], a=None, used="x", c={2}, d=b"e")
    assert rest(values, {"used"}) == {"a": None, "b": [1], "c": "{2}", "d": "b'e'"}
    assert list(rest(values, {"used"})) == ["a", "b", "c", "d"]


def test_files_of_the_repository_are_a_mapping_or_json_of_one():
    assert base_files(row()) == base_files(row(base_files="")) == base_files(row(base_files=None)) == {}
    assert base_files(row(base_files={"a": "1"})) == {"a": "1"}
    assert base_files(row(base_files='{"a": "1"}')) == {"a": "1"}


@pytest.mark.parametrize("value", ['["a"]', {"a": 1}, {"a": None}, {1: "a"}, 7])
def test_files_must_be_texts_by_path(value):
    with pytest.raises(TaskError, match="base_files must map paths to texts"):
        base_files(row(base_files=value))


def test_files_as_text_that_is_no_json():
    with pytest.raises(TaskError, match="base_files is no JSON"):
        base_files(row(base_files="{"))


def test_an_empty_patch_is_no_solution():
    assert gold("") is None
    assert gold(" \n") is None


PATCH = "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-1\n+2"


@pytest.fixture
def workspace(tmp_path):
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    (tmp_path / "a.txt").write_text("1\n")

    def solve(solution):
        for path, content in solution.files.items():
            (tmp_path / path).write_text(content)
        (command,) = solution.run
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        return done.returncode, sorted(path.name for path in tmp_path.iterdir() if path.name != ".git")

    return solve


def test_a_solution_applies_its_patch_and_removes_it(workspace, tmp_path):
    assert workspace(gold(PATCH)) == (0, ["a.txt"])
    assert (tmp_path / "a.txt").read_text() == "2\n"


def test_a_solution_that_does_not_apply_fails_and_leaves_no_patch(workspace, tmp_path):
    code, names = workspace(gold(PATCH.replace("-1", "-9")))
    assert code != 0
    assert names == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "1\n"


def test_a_repository_is_made_after_the_commands_before_it():
    setup = begun(("rm", "-rf", ".git"), ignored=True)
    assert setup.run[0] == ("rm", "-rf", ".git")
    assert setup.run[1][3:] == ("begin", "--force")
    assert begun().run[0][3:] == ("begin",)


def test_the_history_is_cut_at_the_base_commit():
    ((*_, name, commit),) = scrubbed("9f1f1c2").run
    assert (name, commit) == ("scrub", "9f1f1c2")
    assert scrubbed("x").timeout_s == 900.0
