"""Tasks written as Harbor directories: what becomes a test script judges as the checks do, and the rest is
refused.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest

from environments.shell_tasks import ShellTasks
from environments.swe import SweTasks
from harnessgym.errors import TaskError
from harnessgym.task import Limits, Setup, Solution, Task
from harnessgym.tasks.harbor import Harbor
from harnessgym.tasks.harbor_writing import HarborWriter
from harnessgym.tasks.native import GRADER
from harnessgym.tasks.source import task_format
from harnessgym.tasks.writing import convert, task_writer

SHIPPED = {
    task.id.partition("/")[2]: task for split in ("train", "test") for task in ShellTasks().tasks(split)
}
SWE = tuple(task for split in ("train", "test") for task in SweTasks().tasks(split))
ONE_A_PACKAGE = {task.metadata["repo"]: task for task in SWE}
WRITABLE = [
    "log-pipeline",
    "merge-contacts",
    "rotate-backups",
    "sales-summary",
    "service-config",
    "tidy-scans",
    "top-words",
]


PYTEST = {"kind": "pytest", "files": ["test_it.py"], "expect": ["test_it.py::test_it"]}


def task(*checks, **fields):
    metadata = {
        "tests": checks,
        "test_files": fields.pop("test_files", {}),
        "score": fields.pop("score", "all"),
    }
    return Task("set/mine", "Do it.", **{"grader": GRADER, "metadata": metadata, **fields})


@pytest.fixture
def written(tmp_path):
    def write(task):
        folder = tmp_path / "written"
        folder.mkdir()
        return folder, HarborWriter().write(task, folder)

    return write


@pytest.fixture
def reward(tmp_path):
    """Judges a folder by a written directory's program, on this machine."""

    def judge(folder, workspace):
        tests = tmp_path / "tests"
        shutil.copytree(folder / "tests", tests)  # what is expected is removed by the run
        argv = [sys.executable, "-I", str(tests / "check.py"), str(tmp_path / "logs")]
        done = subprocess.run(argv, cwd=workspace, capture_output=True, text=True, check=False, timeout=240)
        left = (tests / "checks.json").exists()
        shutil.rmtree(tests)
        assert done.returncode == 0, done.stderr
        assert not left
        return float((tmp_path / "logs" / "reward.txt").read_text())

    return judge


def furnished(folder, place):
    """A working folder as the written Dockerfile makes it."""
    place.mkdir()
    if (folder / "environment" / "files").is_dir():
        shutil.copytree(folder / "environment" / "files", place, dirs_exist_ok=True)
    for line in (folder / "environment" / "Dockerfile").read_text().splitlines():
        if line.startswith("RUN "):
            subprocess.run(json.loads(line[4:]), cwd=place, check=True, capture_output=True)
    return place


@pytest.mark.parametrize("name", WRITABLE)
def test_written_tests_of_shipped_tasks_reward_gold_and_not_nothing(written, reward, tmp_path, name):
    folder, _ = written(SHIPPED[name])
    assert reward(folder, furnished(folder, tmp_path / "nothing")) == 0.0
    solved = furnished(folder, tmp_path / "gold")
    subprocess.run([str(folder / "solution" / "solve.sh")], cwd=solved, check=True, capture_output=True)
    assert reward(folder, solved) == 1.0


@pytest.mark.parametrize("name", WRITABLE)
def test_what_is_written_is_read_as_the_same_task(tmp_path, name):
    (written,) = convert([SHIPPED[name]], task_writer("harbor"), tmp_path / "out")
    assert written.refused == ""
    loaded = Harbor().read(tmp_path / "out")
    assert loaded.problems == ()
    (found,) = loaded.tasks
    before = SHIPPED[name]
    assert found.instruction == before.instruction
    assert found.limits == replace(
        Limits(), **{key: getattr(before.limits, key) for key in ("wall_s", "memory_mb", "disk_mb", "cpus")}
    )
    assert (found.home, found.solution is not None) == ("/app", True)


@pytest.mark.parametrize("package", sorted(ONE_A_PACKAGE))
def test_swe_tasks_are_written_with_their_pristine_tests_and_read_back(tmp_path, package):
    before = ONE_A_PACKAGE[package]
    (written,) = convert([before], task_writer("harbor"), tmp_path / "out")
    assert written.refused == ""
    assert any("run as root" in note for note in written.notes)
    loaded = Harbor().read(tmp_path / "out")
    assert loaded.problems == ()
    (found,) = loaded.tasks
    assert found.instruction == before.instruction
    assert before.metadata["test_files"].items() <= found.metadata["test_files"].items()
    plan = json.loads(found.metadata["test_files"]["checks.json"])
    assert plan["test_files"] == sorted(before.metadata["test_files"])
    assert plan["checks"][0]["expect"] == list(before.metadata["tests"][0]["expect"])


def test_what_is_copied_needs_no_other_module_of_ours(written):
    folder, _ = written(task(PYTEST, test_files={"test_it.py": "def test_it(): pass\n"}))
    for module in (folder / "tests").glob("*.py"):
        imports = [
            line for line in module.read_text().splitlines() if line.lstrip().startswith(("from ", "import "))
        ]
        assert not [line for line in imports if "harnessgym" in line]


def test_parts_and_weights_are_the_checks_own(written, reward, tmp_path):
    half = {"kind": "command", "script": "half.sh", "result": "json", "weight": 1.0}
    right = {"kind": "files", "rules": [{"path": "a/b.txt", "pattern": "^x$"}], "weight": 3.0}
    folder, _ = written(
        task(
            half,
            right,
            score="weighted",
            test_files={"half.sh": "cat a/b.txt >&2; echo '{\"reward\": 0.5}'\n"},
        )
    )
    place = furnished(folder, tmp_path / "place")
    assert reward(folder, place) == pytest.approx(0.125)
    (place / "a").mkdir()
    (place / "a" / "b.txt").write_text("x\n")
    assert reward(folder, place) == pytest.approx(0.875)


def test_checks_do_not_see_each_other_or_what_is_no_artifact(written, reward, tmp_path):
    leaves = {
        "kind": "io",
        "command": ["sh", "-c", "ls; echo 1 > left.txt"],
        "cases": [{"stdout": "kept.txt\n"}],
    }
    folder, _ = written(task(leaves, {**leaves, "name": "again"}, artifacts=("kept.txt",)))
    place = furnished(folder, tmp_path / "place")
    (place / "kept.txt").write_text("")
    (place / "other.txt").write_text("")
    assert reward(folder, place) == 1.0
    assert sorted(os.listdir(place)) == ["kept.txt", "other.txt"]


def test_a_command_that_hangs_or_is_not_there_fails(written, reward, tmp_path):
    hangs = {
        "kind": "io",
        "command": ["sh", "-c", "sleep 60 & sleep 60"],
        "cases": [{"stdout": ""}],
        "timeout_s": 0.5,
    }
    absent = {"kind": "io", "command": ["./absent"], "cases": [{"exit_code": 0}]}
    folder, _ = written(task(hangs, absent))
    assert reward(folder, furnished(folder, tmp_path / "place")) == 0.0


def test_setup_and_limits_are_kept(written):
    given = task(
        {"kind": "files", "rules": [{"path": "a"}]},
        setup=Setup((("chmod", "+x", "--", "a b.sh"), ("sh", "-c", "echo 1\necho '2'"))),
        files={"a b.sh": "true\n"},
        limits=Limits(wall_s=5.0, memory_mb=300, disk_mb=30, cpus=0.5),
        env={"A": "1"},
        image="some/image:1",
        solution=Solution({"a": "x"}, (("touch", "b c"),)),
    )
    folder, notes = written(given)
    lines = (folder / "environment" / "Dockerfile").read_text().splitlines()
    assert lines[:3] == ["FROM some/image:1", "WORKDIR /app", "COPY files/ ./"]
    assert lines[3:] == ['RUN ["chmod", "+x", "--", "a b.sh"]', 'RUN ["sh", "-c", "echo 1\\necho \'2\'"]']
    table = tomllib.loads((folder / "task.toml").read_text())
    assert table["environment"] == {
        "cpus": 0.5, "memory_mb": 300, "storage_mb": 30, "network_mode": "no-network", "workdir": "/app", "env": {"A": "1"},
    }  # fmt: skip
    assert "touch 'b c'" in (folder / "solution" / "solve.sh").read_text()
    assert any("python3" in note for note in notes)
    assert any("agent's container" in note for note in notes)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (SHIPPED["free-slots"], r"tests\[0\] is of the kind 'call'"),
        (SHIPPED["running-median"], r"tests\[1\] is of the kind 'call'"),
        (task({"kind": "files", "rules": [{"path": "a"}]}, grader="other:grade"), "other:grade"),
        (task({"kind": "files", "rules": [{"path": "a"}]}, image="context:/x"), "context:/x"),
        (task({"kind": "files", "rules": [{"path": "a"}]}, image="x", home="/testbed"), "home"),
        (task({"kind": "command", "script": "check.py"}, test_files={"check.py": ""}), r"check\.py"),
        (task(PYTEST, test_files={"test_it.py": "", "pytest_report.py": ""}), r"pytest_report\.py"),
    ],
)
def test_what_would_be_another_task_is_refused(tmp_path, given, named):
    with pytest.raises(TaskError, match=named):
        HarborWriter().write(given, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_writer_is_named_as_the_format_is():
    assert isinstance(task_writer("harbor"), HarborWriter)
    assert isinstance(task_format("harbor"), Harbor)
