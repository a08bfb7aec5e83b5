"""Tasks written as native folders: each part has its file, and is read as the same part again."""

import os
import subprocess
import tomllib
from dataclasses import replace

import pytest

from harnessgym.errors import TaskError
from harnessgym.task import Limits, Setup, Solution, Task
from harnessgym.tasks.native import GRADER, SETUP, STREAM, read_task
from harnessgym.tasks.native_writing import NativeWriter
from harnessgym.tasks.payload import payload_of

CHECK = {"kind": "command", "script": "run.sh"}
PLAIN = Task(
    "set/one",
    "Do it.",
    grader=GRADER,
    metadata={"tests": (CHECK,), "test_files": {"run.sh": "true\n"}, "score": "all"},
)


@pytest.fixture
def written(tmp_path):
    """Writes a task into the folder `one`; returns the folder and the notes."""

    def write(name="one", **changes):
        folder = tmp_path / name
        folder.mkdir()
        return folder, NativeWriter().write(replace(PLAIN, **changes), folder)

    return write


def table(folder):
    return tomllib.loads((folder / "task.toml").read_text())


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_plain_task_is_three_files_and_a_table_of_its_checks(written):
    folder, notes = written()
    assert names(folder) == ["instruction.md", "task.toml", "tests/run.sh"]
    assert table(folder) == {"split": "train", "score": "all", "tests": [CHECK]}
    assert notes == []


def test_an_id_is_written_only_where_the_folder_has_another_name(written):
    assert "id" not in table(written()[0])
    assert table(written("other")[0])["id"] == "one"


def test_only_limits_that_differ_are_written(written):
    folder, _ = written(limits=Limits(wall_s=5.0, tokens=100))
    assert table(folder)["limits"] == {"wall_s": 5.0, "tokens": 100}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"split": "test", "seed": 7},
        {"needs": frozenset({"root", "disk"}), "artifacts": ("a", "b/c")},
        {"verifier": "shared", "image": "some/image:1"},
        {"setup": Setup((("sh", "-c", "echo 'a b' | cat"), ("touch", "a b")), ("example.org",), 5.0)},
        {"files": {"a/b.txt": "1\r\n", "c": "é"}, "solution": Solution({"a/b.txt": "2\n"})},
        {"solution": Solution(run=(("sh", "-e", "-c", "echo 1 > a\n"),))},
        {"metadata": {**PLAIN.metadata, "score": "weighted", "source": {"url": "x", "lines": [1, 2]}}},
    ],
)
def test_what_is_written_is_read_as_the_same_task(written, changes):
    folder, notes = written(**changes)
    assert notes == []
    assert payload_of(read_task(folder, prefix="set")) == payload_of(replace(PLAIN, **changes))


def test_executable_files_are_executable_in_the_folder_and_again_when_read(written):
    setup = Setup((("chmod", "+x", "--", "bin/run"), ("true",)))
    folder, _ = written(files={"bin/run": "#!/bin/sh\n", "a": ""}, setup=setup)
    assert os.access(folder / "files/bin/run", os.X_OK)
    assert not os.access(folder / "files/a", os.X_OK)
    assert table(folder)["setup"]["run"] == [["true"]]
    assert read_task(folder).setup == setup


def test_a_chmod_of_files_that_are_made_later_stays_a_command(written):
    folder, _ = written(setup=Setup((("chmod", "+x", "--", "made"),)))
    assert table(folder)["setup"]["run"] == [["chmod", "+x", "--", "made"]]


def test_a_folder_of_this_machine_is_named_as_image_and_noted(written):
    folder, notes = written(image="context:/srv/image")
    assert table(folder)["image"] == "context:/srv/image"
    assert notes == ["image: context:/srv/image is a folder of this machine; it is named, not copied."]


def test_commands_of_a_solution_become_the_lines_of_a_script(written):
    folder, notes = written(solution=Solution({"a": "1"}, (("cp", "a", "b c"), ("touch", "d"))))
    assert (folder / "gold.sh").read_text() == "cp a 'b c'\ntouch d\n"
    assert (folder / "gold/a").read_text() == "1"
    assert notes == ["solution: its commands became the lines of one script."]


def test_null_in_a_list_is_refused_with_its_place(written):
    with pytest.raises(TaskError, match=r"metadata\.a\.b holds null, which TOML cannot say"):
        written(metadata={**PLAIN.metadata, "a": {"b": [1, None]}})


def test_a_repository_is_written_as_its_stream_and_read_again(written, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_NAME": "a", f"GIT_{who}_EMAIL": "a@example.org"}

    def git(*words):
        command = ["git", "-C", str(source), *words]
        return subprocess.run(command, env=env, capture_output=True, check=True).stdout.decode()

    git("init", "-q", "-b", "main", ".")
    (source / "a").write_text("1\n")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    base = git("rev-parse", "HEAD").strip()
    before = replace(
        PLAIN,
        files={STREAM: git("fast-export", "main"), "extra": "2\n"},
        setup=Setup((("sh", "-c", SETUP), ("true",))),
        metadata={**PLAIN.metadata, "base": base},
    )
    folder, _ = written(files=before.files, setup=before.setup, metadata=before.metadata)
    assert names(folder)[:2] == ["files/extra", "instruction.md"]
    assert table(folder)["repo"] == {"base": base}
    again = read_task(folder, prefix="set")
    assert again.setup == before.setup
    assert again.metadata["base"] == base
    assert again.files["extra"] == "2\n"
    assert "1\n" in again.files[STREAM]
