"""Rows of SWE-bench, SWE-rebench and R2E as tasks: what is read, what is refused, what is written again."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from harnessgym.errors import TaskError
from harnessgym.grading.log import parser_named
from harnessgym.grading.patches import new_files
from harnessgym.grading.verifiers.eval_log import END, START
from harnessgym.grading.verifiers.evaluation import eval_script
from harnessgym.task import Task
from harnessgym.tasks.payload import payload_of, task_of
from harnessgym.tasks.source import notes_of, problems_of, recognised, task_set
from harnessgym.tasks.swe_bench import SweBench, image_name
from harnessgym.tasks.writing import convert, task_writer

SAMPLES = Path(__file__).parent / "samples"
KINDS = {
    "swe_bench": ("SweBench", "/testbed"),
    "swe_bench/repository": ("SweBenchRepo", "/testbed"),
    "swe_bench/repository/tasks": ("SweBenchRepo", "/testbed"),
    "swe_bench/repository/tasks/acme__shapes-7": ("SweBenchRepo", "/testbed"),
    "swe_rebench/sample.json": ("SweRebench", "/shapes"),
    "r2e": ("R2e", "/testbed"),
}


@pytest.mark.parametrize("sample", KINDS)
def test_every_sample_is_recognised_and_read(sample):
    kind, home = KINDS[sample]
    form = recognised(SAMPLES / sample)
    assert type(form).__name__ == kind
    loaded = form.read(SAMPLES / sample)
    assert loaded.tasks
    assert (loaded.problems, loaded.notes) == ((), ())
    for task in loaded.tasks:
        assert task.home == home
        assert "rectangle" in task.instruction
        assert "ISSUE" not in task.instruction
        assert task_of(payload_of(task)) == task


def test_old_and_new_rows_of_swe_bench():
    old, new = SweBench().read(SAMPLES / "swe_bench").tasks
    assert (old.id, old.split, old.image) == (
        "swe_bench/acme__shapes-5",
        "test",
        image_name("acme__shapes-5"),
    )
    assert new.image == "swebench/sweb.eval.x86_64.acme_1776_shapes-6:latest"
    spec = old.metadata["swe_bench"]
    assert (spec["fail_to_pass"], spec["pass_to_pass"]) == (
        ["tests/test_area.py::test_rectangle"],
        ["tests/test_area.py::test_square"],
    )
    assert (spec["log_parser"], spec["eval_type"], spec["eval_script"]) == (
        "parse_log_pytest",
        "pass_and_fail",
        "",
    )
    assert START in new.metadata["swe_bench"]["eval_script"]
    assert new.metadata["swe_bench"]["image_assets"]["test_patch"][0]["path"] == "tests/expected.png"
    assert new.metadata["row"]["difficulty"] == "<15 min fix"
    assert old.solution.files[".gold.patch"].startswith("diff --git a/shapes/area.py")


def test_a_task_of_a_repository_is_built_from_its_folder():
    folder = SAMPLES / "swe_bench" / "repository"
    (task,) = task_set(str(folder)).tasks("test")
    inside = folder.resolve() / "tasks" / "acme__shapes-7"
    assert (task.image, task.split) == (f"context:{inside}", "test")
    spec = task.metadata["swe_bench"]
    assert (spec["version"], spec["assets"]) == ("1.2", str(inside / "test_assets"))
    assert task.metadata["row"]["hints_text"] == "It is the operator.\n"


def test_line_ends_in_the_patches_of_a_repository_are_kept(tmp_path):
    shutil.copytree(SAMPLES / "swe_bench" / "repository", tmp_path / "r")
    patch = "diff --git a/x b/x\r\n--- a/x\r\n+++ b/x\r\n@@ -1 +1 @@\r\n-a\r\n+b\r\n"
    (tmp_path / "r" / "tasks" / "acme__shapes-7" / "test.patch").write_bytes(patch.encode())
    (task,) = task_set(str(tmp_path / "r")).tasks("test")
    assert task.metadata["swe_bench"]["test_patch"] == patch


@pytest.mark.parametrize("gone", ["gold.patch", "eval.sh", "problem_statement.md"])
def test_a_task_of_a_repository_without_a_file_is_named(tmp_path, gone):
    for name in ("one", "two"):
        shutil.copytree(SAMPLES / "swe_bench/repository/tasks/acme__shapes-7", tmp_path / "tasks" / name)
        table = tmp_path / "tasks" / name / "task.yaml"
        table.write_text(yaml.safe_dump({**yaml.safe_load(table.read_text()), "instance_id": name}))
    (tmp_path / "tasks" / "one" / gone).unlink()
    found = task_set(str(tmp_path))
    assert [task.id.split("/")[1] for task in found.tasks("test")] == ["two"]
    assert gone in problems_of(found)[0]


def test_a_row_of_swe_rebench():
    (task,) = task_set(str(SAMPLES / "swe_rebench")).tasks("train")
    assert (task.home, task.image) == ("/shapes", "docker.io/swerebenchv2/acme-shapes:8-9f1f1c2")
    spec = task.metadata["swe_rebench"]
    assert spec["test_cmd"] == ["python3 -m pytest -rA --tb=no -p no:cacheprovider"]
    assert spec["pass_to_pass"] == ["tests/test_area.py::test_square (0.01s)"]


def test_a_row_of_r2e():
    (task,) = task_set(str(SAMPLES / "r2e")).tasks("train")
    assert task.id == "r2e/shapes-9f1f1c2b7a3d"
    assert task.instruction.startswith("**rectangle() adds**")
    assert task.metadata["r2e"]["expected"]["TestSquare.test_square"] == "PASSED"
    assert "run_tests.sh" in task.setup.run[0]


def sample(name):
    text = (SAMPLES / name).read_text()
    return json.loads(text)[0] if name.endswith(".json") else json.loads(text.splitlines()[-1])


BROKEN = [
    ("swe_bench/test.jsonl", "instance_id", "../x", "holds signs that no id has"),
    ("swe_bench/test.jsonl", "instance_id", None, "instance_id is missing"),
    ("swe_bench/test.jsonl", "base_commit", "", "base_commit is empty"),
    ("swe_bench/test.jsonl", "problem_statement", " ", "problem_statement"),
    ("swe_bench/test.jsonl", "FAIL_TO_PASS", "[", "FAIL_TO_PASS is text that is no JSON"),
    ("swe_bench/test.jsonl", "FAIL_TO_PASS", "[]", "FAIL_TO_PASS names no test"),
    ("swe_bench/test.jsonl", "PASS_TO_PASS", [1], "PASS_TO_PASS is"),
    (
        "swe_bench/test.jsonl",
        "log_parser",
        "parse_log_pytst",
        "log_parser: There is no log parser 'parse_log_pytst'",
    ),
    ("swe_bench/test.jsonl", "eval_type", "all", "eval_type is 'all'. Give one of: pass_and_fail, fail_only"),
    ("swe_bench/test.jsonl", "image", 3, "image is"),
    ("swe_bench/test.jsonl", "image_assets", "[1]", "image_assets must map"),
    ("swe_bench/test.jsonl", "base_files", {"a": 1}, "base_files must map"),
    ("swe_rebench/sample.json", "repo", "shapes", "Give `owner/name`"),
    ("swe_rebench/sample.json", "image_name", None, "image_name is missing"),
    ("swe_rebench/sample.json", "install_config", {"test_cmd": []}, "install_config.test_cmd"),
    (
        "swe_rebench/sample.json",
        "install_config",
        {"test_cmd": "x", "log_parser": "parse_log_cobol"},
        "parse_log_cobol",
    ),
    ("r2e/rows.jsonl", "expected_output_json", "{}", "expected_output_json must be an object"),
    ("r2e/rows.jsonl", "expected_output_json", "x", "expected_output_json is no JSON"),
]


@pytest.mark.parametrize(("name", "key", "value", "said"), BROKEN)
def test_a_malformed_row_is_named_with_its_key_and_the_rest_is_read(tmp_path, name, key, value, said):
    good, bad = sample(name), sample(name)
    bad["instance_id"] = bad.get("instance_id", "") + "-b"
    bad[key] = value
    if value is None:
        del bad[key]
    (tmp_path / "rows.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n")
    found = task_set(str(tmp_path / "rows.jsonl"))
    assert len(found.tasks("train")) == 1
    (problem,) = problems_of(found)
    assert said in problem
    assert "rows.jsonl: row 2" in problem


def test_an_unknown_key_is_kept_and_noted_once(tmp_path):
    rows = [{**sample("swe_bench/test.jsonl"), "instance_id": f"a-{i}", "colour": i} for i in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = task_set(str(tmp_path / "rows.jsonl"))
    assert [task.metadata["row"]["colour"] for task in found.tasks("train")] == [0, 1, 2]
    (note,) = notes_of(found)
    assert "row 1: the key 'colour' means nothing" in note


def test_one_id_twice_is_a_problem(tmp_path):
    row = json.dumps(sample("swe_bench/test.jsonl")) + "\n"
    (tmp_path / "rows.jsonl").write_text(row + row)
    found = task_set(str(tmp_path / "rows.jsonl"))
    assert len(found.tasks("train")) == 1
    assert "two tasks with the id" in problems_of(found)[0]


def test_names_of_images():
    assert image_name("Astropy__astropy-1", arch="x86_64") == "sweb.eval.x86_64.astropy__astropy-1:latest"
    assert image_name("a__b-1", "swebench", "arm64", "v2") == "swebench/sweb.eval.arm64.a_1776_b-1:v2"


def test_scripts_for_rows_without_one():
    patch = "--- a/tests/admin/test_x.py\n+++ b/tests/admin/test_x.py\n@@ -1 +1 @@\n-a\n+b\n--- a/tests/data.json\n"
    script = eval_script("django/django", patch, "/testbed")
    assert "runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 admin.test_x\n" in script
    assert script.index(START) < script.index("runtests") < script.index(END)
    assert "cd /testbed" in script
    assert "pytest -rA tests/admin/test_x.py\n" in eval_script("acme/shapes", patch, "/testbed")
    assert "installed_pytest -rA tests/admin/test_x.py\n" in eval_script("acme/shapes", patch, "")
    assert "go test 'a b'" in eval_script("x/y", patch, "", ["a b"], "go test")


@pytest.mark.parametrize("sample_name", ["swe_bench/test.jsonl", "swe_bench/repository"])
def test_what_is_read_is_written_again(tmp_path, sample_name):
    tasks = [
        task for split in ("train", "test") for task in task_set(str(SAMPLES / sample_name)).tasks(split)
    ]
    written = list(convert(tasks, task_writer("swe_bench"), tmp_path / "out"))
    assert [each.refused for each in written] == [""] * len(tasks)
    again = task_set(str(tmp_path / "out"))
    assert problems_of(again) == ()
    for before, after in zip(tasks, again.tasks("test"), strict=True):
        assert (after.instruction, after.solution, after.image, after.setup) == (
            before.instruction,
            before.solution,
            before.image,
            before.setup,
        )
        assert after.metadata["row"] == before.metadata["row"]
        spec = {key: value for key, value in before.metadata["swe_bench"].items() if key != "assets"}
        assert after.metadata["swe_bench"] == spec


MADE = {
    "fail_to_pass": ["test_a.py::test_a"],
    "pass_to_pass": [],
    "gold_patch": "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+b\n",
}
TEST_A = "def test_a():\n    assert True\n"
OWNED = {**MADE, "test_patch": new_files({"test_a.py": TEST_A})}


def test_a_task_of_another_kind_is_written_if_its_metadata_says_what_a_row_must(tmp_path):
    tests = {"test_a.py": TEST_A, "data.txt": "no end"}
    metadata = {**MADE, "test_files": tests, "repo": "me/mine", "version": "1"}
    task = Task(
        "mine/one", "Repair a.", "test", files={"a.py": "a\n", **tests, "test_a.py": ""}, metadata=metadata
    )
    (written,) = convert([task], task_writer("swe_bench"), tmp_path / "out")
    assert "base_files is a column of ours" in written.notes[0]
    (again,) = task_set(str(tmp_path / "out")).tasks("test")
    assert (again.id, again.files, again.home, again.image) == ("out/one", {"a.py": "a\n"}, "", None)
    assert "installed_pytest -rA test_a.py" in again.metadata["swe_bench"]["eval_script"]
    assert again.metadata["swe_bench"]["test_patch"] == new_files(tests)
    assert again.metadata["swe_bench"]["repo"] == "me/mine"


def test_ids_with_spaces_are_written_as_the_log_of_their_parser_gives_them(tmp_path):
    metadata = {**MADE, "test_files": {"test_a.py": TEST_A}, "fail_to_pass": ["test_a.py::test_a[b  c]"]}
    list(
        convert(
            [Task("a", "x", files={"a.py": "a\n"}, metadata=metadata)],
            task_writer("swe_bench"),
            tmp_path / "out",
        )
    )
    (again,) = task_set(str(tmp_path / "out")).tasks("train")
    spec = again.metadata["swe_bench"]
    assert list(parser_named(spec["log_parser"])("PASSED test_a.py::test_a[b  c]")) == spec["fail_to_pass"]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Task("a", "x", files={"a": "", "test_a.py": TEST_A}, metadata=MADE), "No test patch has test_a.py"),
        (Task("a", "x", image="i", metadata={**MADE, "eval_script": "x"}), "No test patch has test_a.py"),
        (
            Task("a", "x", files={"a": ""}, metadata={**MADE, "test_patch": new_files({"b": "b"})}),
            "No test patch has test_a.py",
        ),
        (
            Task("a", "x", files={"a": ""}, metadata={**MADE, "fail_to_pass": ["TestA"]}),
            "No test patch has the tests",
        ),
        (
            Task("a", "x", files={"a": ""}, metadata={**MADE, "test_files": {"a.py": ""}}),
            "gold_patch changes a.py",
        ),
        (Task("a", "x", files={"t": ""}, metadata={**MADE, "test_files": {"t": ""}}), "no repository"),
        (
            Task("a", "x", files={"a": ""}, metadata={**MADE, "test_files": {"/t": ""}}),
            "no path that a patch can make",
        ),
        (Task("a", "x", files={"a": ""}, metadata={}), "no fail_to_pass, pass_to_pass, gold_patch"),
        (Task("a", "x", metadata=MADE), "neither files nor an image"),
        (
            Task("a", "x", files={"a": ""}, metadata={**OWNED, "fail_to_pass": []}),
            "FAIL_TO_PASS names no test",
        ),
    ],
)
def test_what_would_be_no_row_is_refused(tmp_path, task, said):
    (written,) = convert([task], task_writer("swe_bench"), tmp_path / "out")
    assert said in written.refused
    assert not (tmp_path / "out" / "tasks.jsonl").exists()


def test_a_task_that_is_no_row_has_no_specification():
    from harnessgym.tasks.swe_bench import spec_of

    with pytest.raises(TaskError, match="metadata\\['swe_bench'\\]"):
        spec_of(Task("a", "x"))
