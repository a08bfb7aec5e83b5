"""Task folders: what becomes of them, and that every mistake is named with its file and key."""

import os
import shutil
import subprocess

import pytest

from harnessgym.errors import CapabilityError, TaskError
from harnessgym.tasks.native import GRADER, NativeTasks, read_task

CHECK = '[[tests]]\nkind = "files"\nrules = [{ path = "a.txt", content = "1" }]\n'


@pytest.fixture
def folder(tmp_path):
    """Writes a task folder."""

    def write(name="first", toml=CHECK, instruction="Do it.\n", files=None, root=tmp_path / "set"):
        where = root / name
        where.mkdir(parents=True)
        (where / "task.toml").write_text(toml)
        if instruction is not None:
            (where / "instruction.md").write_text(instruction)
        for path, data in (files or {}).items():
            (where / path).parent.mkdir(parents=True, exist_ok=True)
            (where / path).write_bytes(data if isinstance(data, bytes) else data.encode())
        return where

    return write


def test_a_folder_becomes_a_task(folder):
    toml = (
        'id = "other"\nsplit = "test"\nseed = 7\nneeds = ["root"]\nartifacts = ["a.txt"]\nscore = '
        '"weighted"\n'
        "[limits]\nwall_s = 9\ntokens = 100\n"
        '[setup]\nrun = ["echo a | cat", ["true"]]\nhosts = ["example.org"]\ntimeout_s = 5\n'
        '[metadata]\nsource = "mine"\n' + CHECK
    )
    files = {
        "files/a.txt": "0",
        "files/b/c.sh": "#!/bin/sh\n",
        "tests/t.py": "hidden",
        "gold/a.txt": "1",
        "gold.sh": "true\n",
    }
    where = folder(toml=toml, files=files)
    (where / "files/b/c.sh").chmod(0o755)
    task = read_task(where)
    assert (task.id, task.instruction, task.split, task.seed) == ("other", "Do it.", "test", 7)
    assert task.files == {"a.txt": "0", "b/c.sh": "#!/bin/sh\n"}
    assert (task.limits.wall_s, task.limits.tokens, task.limits.turns) == (9.0, 100, 64)
    assert task.setup.run == (("chmod", "+x", "--", "b/c.sh"), ("sh", "-c", "echo a | cat"), ("true",))
    assert (task.setup.hosts, task.setup.timeout_s) == (("example.org",), 5.0)
    assert (task.needs, task.artifacts, task.grader) == (frozenset({"root"}), ("a.txt",), GRADER)
    assert task.solution.files == {"a.txt": "1"}
    assert task.solution.run == (("sh", "-e", "-c", "true\n"),)
    assert task.metadata["test_files"] == {"t.py": "hidden"}
    assert task.metadata["source"] == "mine"
    assert "hidden" not in str(task.files) + task.instruction


def test_a_set_has_a_name_defaults_and_an_order(folder, tmp_path):
    folder("b")
    folder("a", toml='split = "test"\n[limits]\nturns = 3\n' + CHECK)
    (tmp_path / "set/set.toml").write_text('name = "mine"\n[defaults.limits]\nturns = 5\nwall_s = 7\n')
    tasks = NativeTasks(tmp_path / "set")
    assert tasks.name == "mine"
    assert [(task.id, task.limits.turns, task.limits.wall_s) for task in tasks.tasks("train")] == [
        ("mine/b", 5, 7.0)
    ]
    assert [(task.id, task.limits.turns, task.limits.wall_s) for task in tasks.tasks("test")] == [
        ("mine/a", 3, 7.0)
    ]


def test_one_task_is_a_set_of_one(folder):
    where = folder("alone")
    tasks = NativeTasks(str(where))
    assert [task.id for task in tasks.tasks("train")] == ["alone"]
    assert tasks.tasks("test") == []


def test_without_a_solution_there_is_none(folder):
    assert read_task(folder()).solution is None


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("x = ", ["task.toml", "cannot be read"]),
        ("lmits = 1\n" + CHECK, ["task.toml", "lmits", "Did you mean 'limits'"]),
        ("[limits]\nwal_s = 1\n" + CHECK, ["task.toml: limits", "Did you mean 'wall_s'"]),
        ("[limits]\nwall_s = 0\n" + CHECK, ["limits", "wall_s", "greater than 0"]),
        ("limits = 3\n" + CHECK, ["limits", "must be a table"]),
        ('split = "dev"\n' + CHECK, ["split", "'train' or 'test'"]),
        ('id = "a/b"\n' + CHECK, ["id"]),
        ('artifacts = ["../x"]\n' + CHECK, ["artifacts", "relative path inside the workspace"]),
        ('artifacts = ["/x"]\n' + CHECK, ["artifacts", "relative path inside the workspace"]),
        ("artifacts = []\n" + CHECK, ["artifacts"]),
        ("", ["task.toml: tests", "there are none"]),
        ("tests = [1]\n", ["tests"]),
        ('[[tests]]\nkind = "io"\ncomand = ["x"]\n', ["tests[0]", "Did you mean 'command'"]),
        ('[setup]\nruns = ["x"]\n' + CHECK, ["setup.runs", "Did you mean 'run'"]),
        ("[repo]\nbase = 'main'\n" + CHECK, ["repo.history", "cannot be read"]),
        ('instruction = "twice"\n' + CHECK, ["twice"]),
    ],
)
def test_a_mistake_is_named(folder, toml, named):
    where = folder(toml=toml)
    with pytest.raises(TaskError) as error:
        read_task(where)
    for word in (*named, "first"):
        assert word in str(error.value)


def test_a_need_that_does_not_exist_is_refused(folder):
    with pytest.raises(CapabilityError, match="telepathy"):
        read_task(folder(toml='needs = ["telepathy"]\n' + CHECK))


def test_missing_and_empty_instructions_are_named(folder):
    with pytest.raises(TaskError, match="given nowhere"):
        read_task(folder("none", instruction=None))
    with pytest.raises(TaskError, match="is empty"):
        read_task(folder("empty", instruction=" \n"))


def test_binary_files_links_and_strange_entries_are_refused(folder):
    with pytest.raises(TaskError, match=r"x\.bin is not UTF-8 text \(byte 1\)"):
        read_task(folder("binary", files={"files/x.bin": b"a\xff"}))
    linked = folder("linked", files={"files/a": "a"})
    (linked / "files/b").symlink_to("/etc/passwd")
    with pytest.raises(TaskError, match="is a link"):
        read_task(linked)
    with pytest.raises(TaskError, match=r"holds solution\.sh"):
        read_task(folder("odd", files={"solution.sh": "x"}))
    with pytest.raises(TaskError, match="more than 16 MiB"):
        read_task(folder("big", files={"files/x": b"x" * (17 << 20)}))


def test_sets_that_are_none(folder, tmp_path):
    with pytest.raises(TaskError, match="There is no task folder"):
        NativeTasks(tmp_path / "nowhere").tasks("train")
    (tmp_path / "set").mkdir()
    with pytest.raises(TaskError, match="holds no task that can be used"):
        NativeTasks(tmp_path / "set").tasks("train")
    folder("a", toml='id = "same"\n' + CHECK)
    folder("b", toml='id = "same"\n' + CHECK)
    doubled = NativeTasks(tmp_path / "set")
    assert [task.id for task in doubled.tasks("train")] == ["set/same"]
    assert [
        str(tmp_path / "set") in problem and "two tasks with the id 'set/same'" in problem
        for problem in doubled.problems
    ] == [True]
    (tmp_path / "set/set.toml").write_text("nam = 1\n")
    with pytest.raises(TaskError, match="Did you mean 'name'"):
        NativeTasks(tmp_path / "set").tasks("train")


def test_one_malformed_task_leaves_the_others(folder, tmp_path):
    folder("good")
    folder("bad", toml="lmits = 1\n" + CHECK)
    tasks = NativeTasks(tmp_path / "set")
    assert [task.id for task in tasks.tasks("train")] == ["set/good"]
    (problem,) = tasks.problems
    assert "bad/task.toml" in problem
    assert "Did you mean 'limits'" in problem


def git(folder, *words):
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    for who in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{who}_NAME": "a", f"GIT_{who}_EMAIL": "a@example.org"}
    return subprocess.run(["git", "-C", str(folder), *words], env=env, capture_output=True, check=True).stdout


def test_a_repository_arrives_without_its_future(folder, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    git(source, "init", "-q", "-b", "main", ".")
    for number, text in enumerate(("one", "two", "the future")):
        (source / "a.txt").write_text(text)
        (source / "run.sh").write_text("#!/bin/sh\n")
        (source / "run.sh").chmod(0o755)
        git(source, "add", "-A")
        git(source, "commit", "-q", "-m", f"commit {text}")
        if number == 1:
            base = git(source, "rev-parse", "HEAD").decode().strip()
    where = folder(toml=f'[repo]\nbase = "{base}"\n' + CHECK, files={"files/extra.txt": "laid besides"})
    (where / "repo").mkdir()
    (where / "repo/history.stream").write_bytes(git(source, "fast-export", "--all"))
    task = read_task(where)
    assert task.metadata["base"] == base
    assert "future" not in "".join(task.files.values())
    place = tmp_path / "place"
    place.mkdir()
    for path, text in task.files.items():
        (place / path).write_text(text)
    for command in task.setup.run:
        subprocess.run(
            command, cwd=place, check=True, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        )
    assert git(place, "rev-parse", "HEAD").decode().strip() == base
    assert git(place, "status", "--porcelain") == b"?? extra.txt\n"
    assert (place / "a.txt").read_text() == "two"
    assert os.access(place / "run.sh", os.X_OK)
    assert sorted(path.name for path in place.iterdir()) == [".git", "a.txt", "extra.txt", "run.sh"]
    assert shutil.which("git")
