"""The committed manifest: every task fits its pinned package, is its own, and says nothing of where its
fault is.
"""

import json
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from environments.swe import SweTasks
from environments.swe.edit import edited, undone
from environments.swe.generation import MOST
from environments.swe.manifest import FOLDER, PackageManifest, read, write
from environments.swe.package import package, packages
from environments.swe.tree import tree
from harnessgym.errors import ConfigError, TaskError
from harnessgym.tasks.payload import payload_of, task_of
from harnessgym.tasks.source import task_set

TASKS = {split: SweTasks().tasks(split) for split in ("train", "test")}
ALL = [*TASKS["train"], *TASKS["test"]]
EACH = pytest.mark.parametrize("name", list(packages()))


def test_there_are_many_tasks_of_many_packages_and_the_manifest_is_small():
    assert len(ALL) >= 200
    assert len({task.metadata["repo"] for task in ALL}) >= 5
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_500_000
    assert {path.stem for path in FOLDER.iterdir()} == set(packages())


def test_every_task_hides_its_package_and_those_with_copies_of_it():
    for task in ALL:
        names = {PurePosixPath(path).parts for path in task.solution.files}
        top = {parts[1] if parts[0] == "src" else parts[0] for parts in names}
        assert {"torch", *top} <= set(task.metadata["hidden"]), task.id


def test_ids_are_unique_and_the_splits_share_no_package():
    assert len({task.id for task in ALL}) == len(ALL)
    assert all(task.split == split for split, tasks in TASKS.items() for task in tasks)
    train, test = ({task.metadata["repo"] for task in TASKS[split]} for split in ("train", "test"))
    assert train
    assert test
    assert not train & test


def test_the_set_is_registered_and_the_same_when_asked_again():
    assert [task.id for task in task_set("swe").tasks("test")] == [task.id for task in TASKS["test"]]


@EACH
def test_every_fault_fits_its_package_and_is_undone_by_its_solution(name):
    found, manifest = tree(name), read(package(name))
    for entry in manifest.entries:
        faulty = edited(found.files, entry.edits)
        assert faulty
        assert set(faulty) <= set(found.code)
        assert edited(faulty, undone(entry.edits)) == {path: found.files[path] for path in faulty}


@EACH
def test_some_tests_fail_and_most_do_not(name):
    manifest = read(package(name))
    assert len(set(manifest.tests)) == len(manifest.tests)
    assert not set(manifest.tests) & set(manifest.without)
    for entry in manifest.entries:
        assert 1 <= len(set(entry.failing)) == len(entry.failing) <= MOST * len(manifest.tests)


@EACH
def test_no_two_tasks_are_the_same(name):
    entries = read(package(name)).entries
    assert [entry.number for entry in entries] == list(range(len(entries)))
    assert len({entry.edits for entry in entries}) == len(entries)
    assert len({(entry.functions, entry.failing) for entry in entries}) == len(entries)
    assert max(Counter(function for entry in entries for function in entry.functions).values()) <= 6


@EACH
def test_statements_tell_what_is_wrong_and_never_where(name):
    found = tree(name)
    names = {path.rpartition("/")[2] for path in (*found.code, *found.tests)} - {"__init__.py"}
    for entry in read(package(name)).entries:
        text = entry.statement
        assert "\n- " in text
        assert not [
            path for path in (*found.code, *names, " at 0x", "/root/", "/tmp/", "Traceback") if path in text
        ], text
        assert not [edit.old for edit in entry.edits if len(edit.old) > 25 and edit.old in text]


@EACH
def test_licences_lie_with_the_source(name):
    assert any(path.upper().startswith(("LICENSE", "LICENCE")) for path in tree(name).files)


def test_a_task_is_what_a_writer_needs_and_can_travel():
    task = ALL[0]
    told = task.metadata
    assert {
        "repo",
        "version",
        "base_commit",
        "gold_patch",
        "test_patch",
        "fail_to_pass",
        "pass_to_pass",
    } <= set(told)
    assert not set(told["fail_to_pass"]) & set(told["pass_to_pass"])
    assert {*told["fail_to_pass"], *told["pass_to_pass"]} == set(told["tests"][0]["expect"])
    assert len({task.metadata["base_commit"] for task in ALL}) == len(ALL)
    assert task_of(json.loads(json.dumps(payload_of(task)))).files == task.files


def test_gold_patches_are_taken_by_git(tmp_path):
    for task in ALL[:: len(ALL) // 5]:
        folder = tmp_path / task.id
        for path in task.solution.files:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(task.files[path].encode())
        subprocess.run(
            ["git", "apply", "-"], input=task.metadata["gold_patch"].encode(), cwd=folder, check=True
        )
        assert all(
            (folder / path).read_bytes() == text.encode() for path, text in task.solution.files.items()
        )


def test_a_manifest_survives_its_file_and_a_wrong_one_says_what_to_do(tmp_path):
    wanted = package("inflection")
    manifest = read(wanted)
    write(manifest, tmp_path)
    assert read(wanted, tmp_path) == manifest
    told = replace(manifest, entries=(replace(manifest.entries[0], statement="a\u2028b\x85c\x0cd"),))
    write(told, tmp_path)
    assert read(wanted, tmp_path) == told
    path = write(
        PackageManifest(
            **{**{key: getattr(manifest, key) for key in PackageManifest.__slots__}, "version": "0"}
        ),
        tmp_path,
    )
    with pytest.raises(TaskError, match=r"is of inflection 0, and packages\.toml pins"):
        read(wanted, tmp_path)
    path.write_text("{}\n")
    with pytest.raises(TaskError, match=r"cannot be read: .*environments.swe.generate --package inflection"):
        read(wanted, tmp_path)
    path.unlink()
    with pytest.raises(TaskError, match="There is no manifest"):
        read(wanted, tmp_path)
    with pytest.raises(ConfigError, match="Did you mean 'inflection'"):
        package("inflecton")
