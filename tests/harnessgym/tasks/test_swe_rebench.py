"""Rows of SWE-rebench: where the repository lies, and how its tests are run."""

import json

import pytest

from harnessgym.errors import TaskError
from harnessgym.tasks.rows import TaskRow
from harnessgym.tasks.swe_rebench import GRADER, SweRebench, swe_rebench_task

ROW = {
    "instance_id": "acme__a-1",
    "repo": "acme/a",
    "base_commit": "9f1f1c2",
    "patch": "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-a\n+b\n",
    "test_patch": "--- a/t\n+++ b/t\n@@ -1 +1 @@\n-a\n+b\n",
    "problem_statement": "It is broken.",
    "FAIL_TO_PASS": ["t::a"],
    "PASS_TO_PASS": [],
    "image_name": "image:1",
    "install_config": {"test_cmd": ["go test ./..."], "log_parser": "parse_log_gotest"},
}


def task(**changes):
    return swe_rebench_task(TaskRow("rows.jsonl: row 1", {**ROW, **changes}, "test"), "set")


def config(**changes):
    return {**ROW["install_config"], **changes}


def test_a_row_becomes_a_task():
    made = task(meta={"difficulty": "easy"})
    assert (made.id, made.split, made.image, made.home) == ("set/acme__a-1", "test", "image:1", "/a")
    assert (made.instruction, made.grader) == ("It is broken.", GRADER)
    spec = made.metadata["swe_rebench"]
    assert (spec["test_cmd"], spec["log_parser"]) == (["go test ./..."], "parse_log_gotest")
    assert made.metadata["row"] == {"meta": {"difficulty": "easy"}}
    assert made.solution.files[".gold.patch"] == ROW["patch"]


def test_a_row_without_a_patch_has_no_solution():
    assert task(patch=None).solution is None


@pytest.mark.parametrize("repo", ["a", "/a", "acme/", "acme/a/b", "acme/..", "acme/."])
def test_the_repository_must_say_where_it_lies(repo):
    with pytest.raises(TaskError) as error:
        task(repo=repo)
    assert f"row 1: repo is {repo!r}. Give `owner/name`" in str(error.value)


@pytest.mark.parametrize(
    ("commands", "kept"),
    [("go test", ["go test"]), (["make", "", " ", None, "go test"], ["make", "go test"])],
)
def test_commands_are_one_text_or_several(commands, kept):
    assert task(install_config=config(test_cmd=commands)).metadata["swe_rebench"]["test_cmd"] == kept


@pytest.mark.parametrize("commands", [None, [], "", [" "], {"a": 1}, 7])
def test_without_a_command_the_row_is_refused(commands):
    with pytest.raises(
        TaskError, match=r"install_config\.test_cmd is .*Give the commands that run the tests"
    ):
        task(install_config=config(test_cmd=commands))


@pytest.mark.parametrize("value", [None, "go test", ["go test"]])
def test_a_configuration_is_an_object(value):
    with pytest.raises(TaskError, match="install_config must be an object with test_cmd and log_parser"):
        task(install_config=value)


def test_an_unknown_parser_has_a_hint():
    with pytest.raises(TaskError) as error:
        task(install_config=config(log_parser="parse_log_gotst"))
    assert "row 1: install_config.log_parser: There is no log parser 'parse_log_gotst'." in str(error.value)
    assert "Did you mean 'parse_log_gotest'?" in str(error.value)


def test_a_missing_parser_is_refused():
    with pytest.raises(TaskError, match=r"install_config\.log_parser"):
        task(install_config={"test_cmd": "go test"})


def test_a_parser_of_ones_own_is_accepted():
    made = task(install_config=config(log_parser="mine.parsers:read"))
    assert made.metadata["swe_rebench"]["log_parser"] == "mine.parsers:read"


def test_rows_with_an_installation_are_recognised_and_plain_ones_are_not(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    assert SweRebench().recognises(path)
    path.write_text(json.dumps({key: value for key, value in ROW.items() if key != "install_config"}) + "\n")
    assert not SweRebench().recognises(path)
    assert not SweRebench().recognises(tmp_path / "absent.jsonl")
