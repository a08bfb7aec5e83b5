"""Task repositories of SWE-bench: which folders are tasks, and what is said of a malformed one."""

import json

import pytest
import yaml

from harnessgym.tasks.swe_bench_repo import SweBenchRepo

PATCH = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+b\n"
TABLE = {"repo": "acme/a", "base_commit": "9f1f1c2", "version": "1.2", "log_parser": "parse_log_pytest"}
TESTS = {"FAIL_TO_PASS": ["test_a.py::test_a"], "PASS_TO_PASS": []}


@pytest.fixture
def task(tmp_path):
    """Writes the folder of a task, with some files replaced or, if None, left out."""

    def write(name="acme__a-1", table=None, **files):
        texts = {
            "task.yaml": yaml.safe_dump(TABLE | (table or {})),
            "tests.json": json.dumps(TESTS),
            "problem_statement.md": "It is broken.\n",
            "gold.patch": PATCH,
            "test.patch": PATCH.replace("a.py", "test_a.py"),
            "eval.sh": "#!/bin/bash\n",
        } | {path.replace("_dot_", "."): text for path, text in files.items()}
        folder = tmp_path / "tasks" / name
        folder.mkdir(parents=True)
        for path, text in texts.items():
            if text is not None:
                (folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())
        return folder

    return write


def read(path):
    loaded = SweBenchRepo().read(path)
    assert loaded.problems == ()
    return loaded.tasks


def problem(folder):
    loaded = SweBenchRepo().read(folder)
    assert loaded.tasks == ()
    (text,) = loaded.problems
    return text


def test_a_repository_its_tasks_and_one_task_are_recognised(task, tmp_path):
    folder = task()
    assert all(SweBenchRepo().recognises(path) for path in (tmp_path, tmp_path / "tasks", folder))


def test_a_folder_needs_both_files(task, tmp_path):
    folder = task(tests_dot_json=None)
    assert not SweBenchRepo().recognises(tmp_path)
    (folder / "tests.json").write_text("{}")
    (folder / "task.yaml").unlink()
    assert not SweBenchRepo().recognises(tmp_path)
    assert not SweBenchRepo().recognises(folder / "tests.json")


def test_tasks_come_in_the_order_of_their_folders(task, tmp_path):
    for name in ("b-2", "a-1"):
        task(name)
    assert [each.id.partition("/")[2] for each in read(tmp_path)] == ["a-1", "b-2"]


def test_an_instance_is_named_after_its_folder_unless_the_table_names_it(task, tmp_path):
    task("folder-1")
    task("folder-2", {"instance_id": "other-2"})
    assert [each.metadata["swe_bench"]["instance_id"] for each in read(tmp_path)] == ["folder-1", "other-2"]


@pytest.mark.parametrize(("version", "text"), [(1.0, "1.0"), (3, "3"), ("4.10", "4.10")])
def test_a_version_that_yaml_reads_as_a_number_is_text(task, version, text):
    (only,) = read(task(table={"version": version}))
    assert only.metadata["swe_bench"]["version"] == text


def test_a_commit_of_digits_alone_is_text(task):
    (only,) = read(task(table={"base_commit": 1234567}))
    assert only.metadata["swe_bench"]["base_commit"] == "1234567"


def test_hints_are_kept_but_never_shown(task):
    (only,) = read(task(hints_dot_md="Look at a.py.\n"))
    assert only.metadata["row"]["hints_text"] == "Look at a.py.\n"
    assert "Look at" not in only.instruction


def test_without_a_dockerfile_the_image_has_the_usual_name(task):
    (only,) = read(task())
    assert only.image.startswith("sweb.eval.")
    assert only.image.endswith(".acme__a-1:latest")
    assert only.metadata["swe_bench"]["assets"] == ""


def test_with_a_dockerfile_the_folder_is_built(task):
    folder = task(Dockerfile="FROM x\n")
    (folder / "test_assets").mkdir()
    (only,) = read(folder)
    assert only.image == f"context:{folder}"
    assert only.metadata["swe_bench"]["assets"] == str(folder / "test_assets")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"task_dot_yaml": "a: ["}, "task.yaml cannot be read"),
        ({"task_dot_yaml": "- a\n"}, "task.yaml holds \"['a']\". Write keys and values."),
        ({"tests_dot_json": "{"}, "tests.json cannot be read"),
        ({"tests_dot_json": "[]"}, "tests.json holds '[]'. Write keys and values."),
        ({"tests_dot_json": "{}"}, "FAIL_TO_PASS names no test"),
        ({"gold_dot_patch": b"\xff"}, "gold.patch cannot be read"),
        ({"test_dot_patch": None}, "test.patch, which every task of a repository has. Write it."),
        ({"problem_statement_dot_md": "\n"}, "problem_statement"),
    ],
)
def test_a_malformed_task_is_named_with_its_file(task, files, expected):
    text = problem(task(**files))
    assert expected in text
    assert "acme__a-1" in text


def test_a_malformed_task_leaves_the_others(task, tmp_path):
    task("a-1", eval_dot_sh=None)
    task("b-2")
    loaded = SweBenchRepo().read(tmp_path)
    assert [each.id.partition("/")[2] for each in loaded.tasks] == ["b-2"]
    assert len(loaded.problems) == 1
